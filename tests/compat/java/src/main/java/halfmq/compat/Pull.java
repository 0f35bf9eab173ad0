package halfmq.compat;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** DefaultMQPullConsumer: reading by offset, offsets by time, committed offsets, and a pull that waits. */
final class Pull implements Program {
    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        DefaultMQProducer producer = env.producer("producers");
        for (int number = 0; number < 40; number++) {
            producer.send(Env.message(topic, "t", Integer.toString(number)));
        }
        DefaultMQPullConsumer consumer = env.pullConsumer("consumers");
        Map<String, Object> result = new LinkedHashMap<>();
        List<String> texts = new ArrayList<>();
        // The queues of a stock broker follow its log after the answer to the send.
        Env.await(10, () -> {
            texts.clear();
            for (MessageExt message : Env.readAll(consumer, topic)) {
                texts.add(Env.text(message));
            }
            return texts.size() >= 40;
        });
        result.put("texts", texts);

        MessageQueue queue = new TreeSet<>(consumer.fetchSubscribeMessageQueues(topic)).first();
        long end = consumer.maxOffset(queue);
        result.put("min", consumer.minOffset(queue));
        result.put("max", end);
        result.put("beforeAll", consumer.searchOffset(queue, 0));
        result.put("afterAll", consumer.searchOffset(queue, System.currentTimeMillis() + 3_600_000));
        result.put("earliestMs", System.currentTimeMillis() - consumer.earliestMsgStoreTime(queue));
        result.put("atEnd", consumer.pull(queue, "*", end, 32).getPullStatus());
        PullResult beyond = consumer.pull(queue, "*", end + 100, 32);
        result.put("beyond", beyond.getPullStatus());
        result.put("beyondNext", beyond.getNextBeginOffset());
        result.put("noTag", consumer.pull(queue, "nothing-has-this-tag", 0, 32).getPullStatus());

        consumer.updateConsumeOffset(queue, 7);
        consumer.getOffsetStore().persist(queue);
        Env.await(5, () -> consumer.fetchConsumeOffset(queue, true) == 7);
        result.put("committed", consumer.fetchConsumeOffset(queue, true));

        long before = System.nanoTime();
        Thread later = new Thread(() -> {
            try {
                Thread.sleep(1500);
                producer.send(Env.message(topic, "t", "woken"), queue);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        later.start();
        PullResult waited = consumer.pullBlockIfNotFound(queue, "*", end, 32);
        result.put("waited", waited.getPullStatus());
        result.put("waitedFor", waited.getMsgFoundList() == null ? null : Env.text(waited.getMsgFoundList().get(0)));
        result.put("waitedMs", (System.nanoTime() - before) / 1_000_000);
        later.join();
        consumer.shutdown();
        producer.shutdown();
        return result;
    }
}
