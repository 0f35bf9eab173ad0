package halfmq.compat;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Runs the named programs side by side and prints one line of JSON for each:
 * {"program": name, "result": {...}} or {"program": name, "error": stack trace}.
 *
 * <p>Arguments: name server, prefix of all names, programs.
 */
public final class Run {
    private Run() {
    }

    public static void main(String[] args) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        for (int i = 2; i < args.length; i++) {
            String program = args[i];
            Env env = new Env(args[0], args[1] + "-" + program);
            threads.execute(() -> print(program, env));
        }
        threads.shutdown();
        boolean done = threads.awaitTermination(Integer.getInteger("seconds", 120), TimeUnit.SECONDS);
        System.out.flush();
        // Clients leave threads behind; and a program that hangs must not keep the test waiting.
        Runtime.getRuntime().halt(done ? 0 : 3);
    }

    private static void print(String program, Env env) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("program", program);
        long start = System.nanoTime();
        try {
            Program made = (Program) Class.forName("halfmq.compat." + program).getDeclaredConstructor().newInstance();
            line.put("result", made.run(env));
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            line.put("error", trace.toString());
        }
        line.put("ms", (System.nanoTime() - start) / 1_000_000);
        synchronized (System.out) {
            System.out.println(Json.of(line));
        }
    }
}
