package halfmq.compat;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.consumer.store.RemoteBrokerOffsetStore;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;

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
        Env.await(30, () -> brokerKnowsThatAllIsConsumed(consumer, topic));
        consumer.shutdown();
        return seen;
    }

    /**
     * A consumer that is shut down commits its offsets one-way and closes the connection: on a busy machine the client itself
     * loses them ("send a request command to channel failed" in its log). So they are committed before.
     */
    private static boolean brokerKnowsThatAllIsConsumed(DefaultMQPushConsumer consumer, String topic) throws Exception {
        DefaultMQPushConsumerImpl inside = consumer.getDefaultMQPushConsumerImpl();
        inside.persistConsumerOffset();
        OffsetStore stored = new RemoteBrokerOffsetStore(inside.getmQClientFactory(), consumer.getConsumerGroup());
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            if (stored.readOffset(queue, ReadOffsetType.READ_FROM_STORE) != consumer.maxOffset(queue)) {
                return false;
            }
        }
        return true;
    }
}
