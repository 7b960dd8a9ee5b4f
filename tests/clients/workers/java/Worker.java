// The AWS SDK for Java behind the lines that tools.py sends: a line of JSON asks for one call, a line
// answers it. The environment has the endpoint and the key.

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HexFormat;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider;
import software.amazon.awssdk.awscore.retry.AwsRetryStrategy;
import software.amazon.awssdk.core.async.AsyncRequestBody;
import software.amazon.awssdk.core.client.config.ClientOverrideConfiguration;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.services.s3.S3AsyncClient;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.S3Exception;
import software.amazon.awssdk.services.s3.model.S3Object;
import software.amazon.awssdk.services.s3.presigner.S3Presigner;
import software.amazon.awssdk.transfer.s3.S3TransferManager;

public final class Worker {
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();

    // An endpoint that is an IP address has no virtual hosts, which the SDK finds by itself: it is
    // given nothing but the environment.
    private final S3Client client;
    private final S3Client unsigned;
    private final S3AsyncClient inParts;
    private final S3TransferManager transfers;
    private final S3Presigner presigner = S3Presigner.create();
    private final ExecutorService streams = Executors.newSingleThreadExecutor();

    private Worker() {
        var once = ClientOverrideConfiguration.builder()
                .retryStrategy(AwsRetryStrategy.doNotRetry())
                .build();
        client = S3Client.builder().overrideConfiguration(once).build();
        unsigned = S3Client.builder()
                .credentialsProvider(AnonymousCredentialsProvider.create())
                .overrideConfiguration(once)
                .build();
        inParts = S3AsyncClient.builder()
                .httpClientBuilder(NettyNioAsyncHttpClient.builder())
                .overrideConfiguration(once)
                .multipartEnabled(true)
                .build();
        transfers = S3TransferManager.builder().s3Client(inParts).build();
    }

    private Object call(JsonObject ask) throws IOException {
        String bucket = text(ask, "bucket");
        String key = text(ask, "key");
        switch (text(ask, "call")) {
            case "put": // In parts, above their size; one request otherwise.
                transfers
                        .uploadFile(to -> to.source(path(ask))
                                .putObjectRequest(at -> at.bucket(bucket).key(key)))
                        .completionFuture()
                        .join();
                return null;
            case "stream": // Of a length that the SDK does not know.
                try (var source = Files.newInputStream(path(ask))) {
                    var body = AsyncRequestBody.fromInputStream(from ->
                            from.inputStream(source).executor(streams));
                    transfers
                            .upload(to -> to.requestBody(body)
                                    .putObjectRequest(at -> at.bucket(bucket).key(key)))
                            .completionFuture()
                            .join();
                }
                return null;
            case "put_unsigned": // In chunks with a checksum behind them.
                unsigned.putObject(
                        to -> to.bucket(bucket).key(key), RequestBody.fromFile(path(ask)));
                return null;
            case "create":
                client.putObject(
                        to -> to.bucket(bucket).key(key).ifNoneMatch("*"),
                        RequestBody.fromString(text(ask, "text")));
                return null;
            case "replace":
                return client.putObject(
                                to -> to.bucket(bucket).key(key).ifMatch(text(ask, "etag")),
                                RequestBody.fromString(text(ask, "text")))
                        .eTag();
            case "get": // By parts, where it was put in parts.
                transfers
                        .downloadFile(to -> to.destination(path(ask))
                                .getObjectRequest(at -> at.bucket(bucket).key(key)))
                        .completionFuture()
                        .join();
                return null;
            case "range":
                long first = ask.get("first").getAsLong();
                String range = "bytes=" + first + "-" + ask.get("last").getAsLong();
                var found = client.getObjectAsBytes(at -> at.bucket(bucket).key(key).range(range));
                return HexFormat.of().formatHex(found.asByteArrayUnsafe());
            case "list":
                return client
                        .listObjectsV2Paginator(of -> of.bucket(bucket).prefix(text(ask, "prefix")))
                        .contents()
                        .stream()
                        .map(S3Object::key)
                        .toList();
            case "remove":
                client.deleteObject(at -> at.bucket(bucket).key(key));
                return null;
            case "copy":
                transfers
                        .copy(of -> of.copyObjectRequest(from -> from.sourceBucket(bucket)
                                .sourceKey(key)
                                .destinationBucket(bucket)
                                .destinationKey(text(ask, "to"))))
                        .completionFuture()
                        .join();
                return null;
            case "put_directory":
                var sent = transfers
                        .uploadDirectory(to -> to.source(path(ask)).bucket(bucket).s3Prefix(key))
                        .completionFuture()
                        .join();
                return sent.failedTransfers().stream().map(Object::toString).toList();
            case "get_directory":
                var got = transfers
                        .downloadDirectory(to -> to.destination(path(ask))
                                .bucket(bucket)
                                .listObjectsV2RequestTransformer(of -> of.prefix(key)))
                        .completionFuture()
                        .join();
                return got.failedTransfers().stream().map(Object::toString).toList();
            case "presign":
                return presigner
                        .presignGetObject(to -> to.signatureDuration(Duration.ofMinutes(1))
                                .getObjectRequest(at -> at.bucket(bucket).key(key)))
                        .url()
                        .toString();
            default:
                throw new IllegalArgumentException("no call " + ask);
        }
    }

    private static String text(JsonObject ask, String name) {
        return ask.has(name) ? ask.get(name).getAsString() : null;
    }

    private static Path path(JsonObject ask) {
        return Path.of(text(ask, "path"));
    }

    private static String said(Throwable error) {
        Throwable cause = error instanceof CompletionException ? error.getCause() : error;
        String code = "";
        if (cause instanceof S3Exception refused) {
            code = refused.awsErrorDetails().errorCode() + ": ";
        }
        return cause.getClass().getSimpleName() + ": " + code + cause.getMessage();
    }

    public static void main(String[] arguments) throws IOException {
        var worker = new Worker();
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            var answer = new JsonObject();
            try {
                JsonObject ask = GSON.fromJson(line, JsonObject.class);
                answer.add("value", GSON.toJsonTree(worker.call(ask)));
            } catch (RuntimeException error) {
                answer.addProperty("error", said(error));
            }
            out.println(GSON.toJson(answer));
        }
        // Threads of the SDK would go on for a while.
        System.exit(0);
    }
}
