// node node_clients.js CLIENT URL: Node's own clients, undici and ws as Debian has them.
'use strict';
const name = process.argv[2], url = process.argv[3];

async function fetchText(fetched) {
    const answer = await fetched(url);
    if (!answer.ok) throw new Error(`status ${answer.status}: ${await answer.text()}`);
    return answer.text();
}

const clients = {
    fetch: () => fetchText(fetch),
    'undici-fetch': () => fetchText(require('/usr/share/nodejs/undici').fetch),
    undici: async () => {
        const answer = await require('/usr/share/nodejs/undici').request(url);
        if (answer.statusCode !== 200) throw new Error(`status ${answer.statusCode}`);
        return answer.body.text();
    },
    https: () => new Promise((resolve, reject) => {
        require(new URL(url).protocol.slice(0, -1)).get(url, (answer) => {
            let text = '';
            answer.on('data', (part) => { text += part; });
            answer.on('end', () => resolve(text));
        }).on('error', reject);
    }),
    'fetch-events': async () => (await fetchText(fetch)).split('\n').filter((line) => line)
        .map((line) => line.replace('data: ', '')).join(' '),
    ws: () => new Promise((resolve, reject) => {
        const socket = new (require('/usr/share/nodejs/ws'))(url);
        socket.on('open', () => socket.send('hello'));
        socket.on('message', (message) => { resolve(message.toString()); socket.close(); });
        socket.on('error', reject);
    }),
};

clients[name]().then((text) => console.log(text.trim()), (error) => {
    console.error(error, error.cause ?? '');
    process.exit(1);
});
