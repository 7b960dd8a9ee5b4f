// S3A, Hadoop's file system on S3, behind the lines that tools.py sends: a line of JSON asks for one
// call, a line answers it. The environment has the endpoint and the key.

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.IOUtils;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.Reducer;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;

public final class Worker {
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();
    private static final String ENDPOINT = System.getenv("AWS_ENDPOINT_URL");

    private final Configuration settings = new Configuration();

    private Worker() {
        // What docs/s3.md says that S3A needs.
        settings.set("fs.s3a.endpoint", ENDPOINT);
        settings.set("fs.s3a.endpoint.region", System.getenv("AWS_DEFAULT_REGION"));
        // An endpoint that is an IP address has no virtual hosts.
        boolean hosts = URI.create(ENDPOINT).getHost().endsWith("localhost");
        settings.setBoolean("fs.s3a.path.style.access", !hosts);
        // Beside it: each request is tried once, and parts are small, so that short tests have some.
        settings.setInt("fs.s3a.attempts.maximum", 0);
        settings.setInt("fs.s3a.retry.limit", 0);
        settings.set("fs.s3a.multipart.size", "5M");
        settings.set("fs.s3a.multipart.threshold", "5M");
        // What it buffers stays in the test's folder.
        settings.set("hadoop.tmp.dir", Path.CUR_DIR + "/hadoop");
        // Milliseconds between looks whether a job has ended; 5,000 by default.
        settings.setInt("mapreduce.client.completion.pollinterval", 50);
        settings.set("mapreduce.outputcommitter.factory.scheme.s3a",
                "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory");
    }

    private Object call(JsonObject ask) throws Exception {
        Path at = path(ask, text(ask, "key"));
        FileSystem files = at.getFileSystem(settings);
        if (ask.has("input")) {
            // Another way to read than the default, with which it copies in parts, too.
            var other = new Configuration(settings);
            other.set("fs.s3a.input.stream.type", text(ask, "input"));
            files = FileSystem.newInstance(at.toUri(), other);
        }
        switch (text(ask, "call")) {
            case "put":
                try (var source = Files.newInputStream(local(ask)); var sink = files.create(at)) {
                    IOUtils.copyBytes(source, sink, 1 << 20);
                }
                return null;
            case "create":
                FSDataOutputStreamBuilder<?, ?> creation = files.createFile(at);
                creation.overwrite(true).must("fs.option.create.conditional.overwrite", true);
                try (var sink = creation.build()) {
                    sink.write(text(ask, "text").getBytes(StandardCharsets.UTF_8));
                }
                return null;
            case "get":
                try (var source = files.open(at); var sink = Files.newOutputStream(local(ask))) {
                    IOUtils.copyBytes(source, sink, 1 << 20);
                }
                return null;
            case "range":
                long first = ask.get("first").getAsLong();
                byte[] body = new byte[(int) (ask.get("last").getAsLong() + 1 - first)];
                try (var source = files.open(at)) {
                    source.readFully(first, body);
                }
                return HexFormat.of().formatHex(body);
            case "vectored":
                return vectored(files, at, ask);
            case "list":
                List<String> keys = new ArrayList<>();
                for (var found = files.listFiles(path(ask, ""), true); found.hasNext(); ) {
                    String key = found.next().getPath().toUri().getPath().substring(1);
                    if (key.startsWith(text(ask, "prefix"))) {
                        keys.add(key);
                    }
                }
                return keys;
            case "remove":
                return files.delete(at, true);
            case "rename":
                return files.rename(at, path(ask, text(ask, "to")));
            case "job":
                return runs(ask);
            default:
                throw new IllegalArgumentException("no call " + ask);
        }
    }

    // Ranges that are read side by side.
    private static List<String> vectored(FileSystem files, Path at, JsonObject ask) throws Exception {
        List<FileRange> ranges = new ArrayList<>();
        for (var range : ask.getAsJsonArray("ranges")) {
            long first = range.getAsJsonArray().get(0).getAsLong();
            long last = range.getAsJsonArray().get(1).getAsLong();
            ranges.add(FileRange.createFileRange(first, (int) (last + 1 - first)));
        }
        List<String> bodies = new ArrayList<>();
        try (var source = files.open(at)) {
            source.readVectored(ranges, ByteBuffer::allocate);
            for (var range : ranges) {
                ByteBuffer body = range.getData().get();
                byte[] bytes = new byte[body.remaining()];
                body.get(bytes);
                bodies.add(HexFormat.of().formatHex(bytes));
            }
        }
        return bodies;
    }

    // A job that counts the words of what lies below a key, with a committer of S3A; whether it
    // succeeds. A word "fail" has its reducer fail, behind what that has already written.
    private boolean runs(JsonObject ask) throws Exception {
        var job = Job.getInstance(settings, "words");
        job.getConfiguration().set("fs.s3a.committer.name", text(ask, "committer"));
        job.getConfiguration().setInt("mapreduce.job.reduces", 2);
        job.setJarByClass(Worker.class);
        job.setMapperClass(Words.class);
        job.setReducerClass(Counts.class);
        job.setOutputKeyClass(Text.class);
        job.setOutputValueClass(LongWritable.class);
        FileInputFormat.addInputPath(job, path(ask, text(ask, "key")));
        FileOutputFormat.setOutputPath(job, path(ask, text(ask, "to")));
        return job.waitForCompletion(false);
    }

    public static final class Words extends Mapper<LongWritable, Text, Text, LongWritable> {
        @Override
        protected void map(LongWritable offset, Text line, Context context)
                throws IOException, InterruptedException {
            for (String word : line.toString().split(" ")) {
                context.write(new Text(word), new LongWritable(1));
            }
        }
    }

    public static final class Counts extends Reducer<Text, LongWritable, Text, LongWritable> {
        @Override
        protected void reduce(Text word, Iterable<LongWritable> ones, Context context)
                throws IOException, InterruptedException {
            long count = 0;
            for (var one : ones) {
                count += one.get();
            }
            context.write(word, new LongWritable(count));
            if (word.toString().equals("fail")) {
                throw new IOException("the reducer was asked to fail");
            }
        }
    }

    private static String text(JsonObject ask, String name) {
        return ask.has(name) ? ask.get(name).getAsString() : "";
    }

    private static java.nio.file.Path local(JsonObject ask) {
        return java.nio.file.Path.of(text(ask, "path"));
    }

    private static Path path(JsonObject ask, String key) {
        return new Path("s3a", text(ask, "bucket"), "/" + key);
    }

    private static String said(Throwable error) {
        String cause = error.getCause() == null ? "" : " from " + said(error.getCause());
        return error + cause;
    }

    public static void main(String[] arguments) throws IOException {
        // What S3A prints there is no answer.
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        var worker = new Worker();
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            var answer = new JsonObject();
            try {
                JsonObject ask = GSON.fromJson(line, JsonObject.class);
                answer.add("value", GSON.toJsonTree(worker.call(ask)));
            } catch (Exception error) {
                answer.addProperty("error", said(error));
            }
            out.println(GSON.toJson(answer));
        }
        // Threads of the SDK would go on for a while.
        System.exit(0);
    }
}
