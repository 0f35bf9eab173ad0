package halfmq.soak;

import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

/**
 * The history file of one life of this process, in the format of {@code halfmq.testing.history.events}: one event per line.
 *
 * <p>A line is in the page cache when {@code write} returns, so a SIGKILL cannot lose it.
 */
final class Notes {
    private final FileOutputStream file;
    private final String by;

    Notes(String directory, String by, String system) throws IOException {
        this.file = new FileOutputStream(directory + "/" + by + ".jsonl", true);
        this.by = by;
        write("began", "system", system);
    }

    /** Alternating names and values; values are text, numbers or booleans. */
    void write(String event, Object... fields) {
        StringBuilder line = new StringBuilder(200);
        // CLOCK_MONOTONIC, as in the other processes.
        line.append("{\"e\":\"").append(event).append("\",\"t_us\":").append(System.nanoTime() / 1000);
        line.append(",\"by\":\"").append(by).append('"');
        for (int i = 0; i < fields.length; i += 2) {
            line.append(",\"").append(fields[i]).append("\":");
            Object value = fields[i + 1];
            if (value instanceof String) {
                line.append('"').append(escaped((String) value)).append('"');
            } else {
                line.append(value);
            }
        }
        line.append("}\n");
        byte[] bytes = line.toString().getBytes(StandardCharsets.UTF_8);
        synchronized (this) {
            try {
                file.write(bytes);
            } catch (IOException error) {
                throw new IllegalStateException("the history cannot be written", error);
            }
        }
    }

    private static String escaped(String text) {
        return text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ");
    }
}
