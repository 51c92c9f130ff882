# What of berth is in the engine of a world with BERTH_TEST_BACKEND=docker, for scripts that source it after world.bash.
# shellcheck shell=bash

count() { # KIND-PATH EXPRESSION: over the engine's document d
    curl -s --unix-socket /run/docker.sock "http://localhost$1" | json "$2"
}
of_agents="(x.get('Labels') or {}).get('berth.role')=='agent'"
in_engine() { # of agents: containers, networks, volumes
    echo "$(count '/containers/json?all=1' "len([x for x in d if $of_agents])")" \
        "$(count /networks "len([x for x in d if $of_agents])")" \
        "$(count /volumes "len([x for x in d['Volumes'] or [] if $of_agents])")"
}
listed() { berth list --json | json "len([a for a in d['agents'] if a['status']=='$1'])"; }
