package halfmq.compat;

import java.io.File;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends until a file is there: a producer that keeps its connections, and one after the other that opens new ones. Each sends at least once
 * after the file is there.
 */
final class Steady implements Program {
    private static final File UNTIL = new File(System.getProperty("steady.until", "/"));

    private final List<String> sent = Env.list();
    private final List<String> errors = Env.list();

    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        DefaultMQProducer keeping = env.producer("keeping");
        Thread kept = new Thread(() -> {
            boolean last;
            int number = 0;
            do {
                last = UNTIL.exists();
                send(keeping, topic, "kept" + number++);
                pause();
            } while (!last);
        });
        kept.start();
        boolean last;
        int number = 0;
        do {
            last = UNTIL.exists();
            DefaultMQProducer opening = env.producer("opening");
            send(opening, topic, "new" + number++);
            opening.shutdown();
        } while (!last);
        kept.join();

        DefaultMQPullConsumer reader = env.pullConsumer("readers");
        List<String> log = new ArrayList<>();
        for (MessageExt message : Env.readAll(reader, topic)) {
            log.add(Env.text(message));
        }
        reader.shutdown();
        keeping.shutdown();
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("sent", sent);
        result.put("errors", errors);
        result.put("log", log);
        return result;
    }

    private void send(DefaultMQProducer producer, String topic, String text) {
        try {
            producer.send(Env.message(topic, "t", text));
            sent.add(text);
        } catch (Exception error) {
            errors.add(text + ": " + error);
        }
    }

    private static void pause() {
        try {
            Thread.sleep(2);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
