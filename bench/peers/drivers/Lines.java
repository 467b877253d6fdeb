import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Instant;
import java.util.Arrays;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

/** What the Java programs for bench/peers/driver.py share: words on stdin, JSON lines on stdout. */
class Lines {
    interface Due { long ms(int number, long nowMs); }

    /** Adds that many messages; returns when all are stored. */
    interface Add { void messages(int count, Due due) throws Exception; }

    static final long DAY_MS = 86_400_000;
    static final int WINDOW = 1000;
    static final byte[] BODY = "x".repeat(100).getBytes();

    private static final PrintStream out = System.out;
    private static double[] lateMs = {};
    private static final AtomicInteger arrived = new AtomicInteger();
    private static volatile CountDownLatch last = new CountDownLatch(0);

    /** Keep what libraries print out of the answers; call it first. */
    static void alone() {
        System.setOut(System.err);
        Thread.setDefaultUncaughtExceptionHandler((thread, failure) -> {
            failure.printStackTrace();
            System.exit(1);
        });
    }

    /** What the step returns, once the server is far enough to do it. */
    static <T> T eventually(Callable<T> step) throws Exception {
        for (int tries = 0; ; tries++) {
            try {
                return step.call();
            } catch (Exception failure) {
                if (tries == 200) throw failure;
                Thread.sleep(200);
            }
        }
    }

    static double nowMs() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1e3 + now.getNano() / 1e6;
    }

    /** Note the arrival of a message that was due then. */
    static void received(long dueMs) {
        double late = nowMs() - dueMs;
        int number = arrived.getAndIncrement();
        if (number < lateMs.length) lateMs[number] = late;
        last.countDown();
    }

    private static void expect(int count) {
        lateMs = new double[count];
        arrived.set(0);
        last = new CountDownLatch(count);
    }

    /** Answer commands until stdin ends. */
    static void serve(String version, Add add) throws Exception {
        out.println("{\"version\": \"" + version + "\"}");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split(" ");
            out.println(answer(words[0], Integer.parseInt(words[1]), words, add));
        }
        System.exit(0);
    }

    private static String answer(String command, int count, String[] words, Add add) throws Exception {
        if (command.equals("fill")) {
            long began = System.nanoTime();
            add.messages(count, (number, nowMs) -> nowMs + DAY_MS);
            return "{\"seconds\": " + (System.nanoTime() - began) / 1e9 + "}";
        }
        expect(count);
        if (command.equals("burst")) {
            long dueMs = Long.parseLong(words[2]);
            add.messages(count, (number, nowMs) -> dueMs);
            double addedMs = nowMs();
            last.await();
            return "{\"addedMs\": " + addedMs + ", \"seconds\": " + (nowMs() - dueMs) / 1e3 + "}";
        }
        int rate = Integer.parseInt(words[2]);
        long firstMs = Long.parseLong(words[3]);
        add.messages(count, (number, nowMs) -> firstMs + number * 1000L / rate);
        last.await();
        return "{\"lateMs\": " + Arrays.stream(lateMs).mapToObj(Double::toString)
            .collect(Collectors.joining(", ", "[", "]")) + "}";
    }
}
