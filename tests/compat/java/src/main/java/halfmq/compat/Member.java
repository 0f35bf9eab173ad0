package halfmq.compat;

import java.io.File;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;

/** One member of a group whose other members are somebody else's clients; it makes a file when it joins, and stays until another is there. */
final class Member implements Program {
    private static final File JOINED = new File(System.getProperty("member.joined", "joined"));
    private static final File UNTIL = new File(System.getProperty("member.until", "/"));

    @Override
    public Map<String, Object> run(Env env) throws Exception {
        List<Map<String, Object>> seen = Env.list();
        DefaultMQPushConsumer consumer = env.pushConsumer("team");
        consumer.subscribe(env.name("topic"), "red || blue");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(Env.facts(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        JOINED.createNewFile();
        boolean ended = Env.await(120, UNTIL::exists);
        consumer.shutdown();
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("ended", ended);
        result.put("seen", seen);
        return result;
    }
}
