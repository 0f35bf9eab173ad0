package halfmq.compat;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** A consumer that stops and starts again goes on where it was. */
final class Restart implements Program {
    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        DefaultMQProducer producer = env.producer("producers");
        send(producer, topic, 0, 40);
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("first", consume(env, topic, 0, 40));
        send(producer, topic, 40, 60);
        result.put("second", consume(env, topic, 40, 60));
        producer.shutdown();
        return result;
    }

    private static void send(DefaultMQProducer producer, String topic, int from, int to) throws Exception {
        for (int number = from; number < to; number++) {
            producer.send(Env.message(topic, "t", Integer.toString(number)));
        }
    }

    private static List<String> consume(Env env, String topic, int from, int to) throws Exception {
        List<String> seen = Env.list();
        DefaultMQPushConsumer consumer = env.pushConsumer("consumers");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(Env.text(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Env.await(30, () -> {
            for (int number = from; number < to; number++) {
                if (!seen.contains(Integer.toString(number))) {
                    return false;
                }
            }
            return true;
        });
        Thread.sleep(2000);
        consumer.shutdown();
        return seen;
    }
}
