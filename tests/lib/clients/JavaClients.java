/* java JavaClients.java CLIENT URL: Java's HttpClient and its older URLConnection. */
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

public class JavaClients {
    static String httpClient(URI uri) throws Exception {
        HttpResponse<String> answer =
            HttpClient.newHttpClient().send(HttpRequest.newBuilder(uri).build(), HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200)
            throw new Exception("status " + answer.statusCode());
        return answer.version() + " " + answer.body();
    }

    static String connection(URI uri) throws Exception {
        try (var stream = uri.toURL().openStream()) {
            return new String(stream.readAllBytes());
        }
    }

    public static void main(String[] arguments) throws Exception {
        URI uri = URI.create(arguments[1]);
        System.out.println((arguments[0].equals("HttpClient") ? httpClient(uri) : connection(uri)).strip());
    }
}
