package halfmq.compat;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;

/** What administration tools ask of a broker, through the calls that they are made of: lag, members, figures. */
final class Admin implements Program {
    private static final long MS = 10_000;

    @Override
    public Map<String, Object> run(Env env) throws Exception {
        String topic = env.name("topic");
        String group = env.name("group");
        DefaultMQProducer producer = env.producer("producers");
        for (int i = 0; i < 10; i++) {
            producer.send(Env.message(topic, "t", "m" + i));
        }
        DefaultMQPullConsumer consumer = env.pullConsumer("group");
        MQClientInstance factory = producer.getDefaultMQProducerImpl().getmQClientFactory();
        MQClientAPIImpl api = factory.getMQClientAPIImpl();
        MessageQueue first = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
        String broker = factory.findBrokerAddressInPublish(first.getBrokerName());
        // Two of the first queue are done, if it has as many: what is left is behind. This question is also what makes the
        // consumer connect, and a while later the broker hears of its group: before, offsets of it are not kept.
        long done = Math.min(2, consumer.maxOffset(first));
        Env.await(20, () -> online(api, broker, group));
        consumer.updateConsumeOffset(first, done);
        consumer.getOffsetStore().persist(first);

        Map<String, Object> result = new LinkedHashMap<>();
        result.put("done", done);
        Env.await(10, () -> api.getConsumeStats(broker, group, MS).computeTotalDiff() == 10 - done);
        result.put("behind", api.getConsumeStats(broker, group, MS).computeTotalDiff());
        result.put("behindInTopic", api.getConsumeStats(broker, group, topic, MS).computeTotalDiff());
        result.put("behindInAll", api.fetchConsumeStatsInBroker(broker, false, MS).getTotalDiff());
        result.put("consumerOffset", api.getConsumeStats(broker, group, MS).getOffsetTable().get(first).getConsumerOffset());
        Map<String, Object> ends = new TreeMap<>();
        api.getTopicStatsInfo(broker, topic, MS).getOffsetTable()
            .forEach((queue, end) -> ends.put(String.valueOf(queue.getQueueId()), end.getMaxOffset()));
        result.put("ends", ends);
        api.getConsumerConnectionList(broker, group, MS).getConnectionSet().forEach(
            connection -> result.put("consumer", connection.getClientId()));
        result.put("consumeType", String.valueOf(api.getConsumerConnectionList(broker, group, MS).getConsumeType()));
        String consumerId = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory().getClientId();
        result.put("consumerId", consumerId);
        api.getProducerConnectionList(broker, env.name("producers"), MS).getConnectionSet().forEach(
            connection -> result.put("producer", connection.getClientId()));
        result.put("producerId", factory.getClientId());
        result.put("saysItself",
            api.getConsumerRunningInfo(broker, group, consumerId, false, MS).getProperties().containsKey("PROP_CLIENT_VERSION"));
        result.put("groupIsKnown",
            api.getAllSubscriptionGroup(broker, MS).getSubscriptionGroupTable().containsKey(group));
        result.put("consumedBy", api.queryTopicConsumeByWho(broker, topic, MS).getGroupList().contains(group));
        Map<String, String> table = api.getBrokerRuntimeInfo(broker, MS).getTable();
        result.put("putTps", table.get("putTps").split(" ").length);
        result.put("put", Long.parseLong(table.get("msgPutTotalTodayNow")));
        result.put("counted", api.viewBrokerStatsData(broker, "TOPIC_PUT_NUMS", topic, MS).getStatsMinute().getSum());
        String order = first.getBrokerName() + ":" + ends.size();
        api.putKVConfigValue("ORDER_TOPIC_CONFIG", topic, order, MS);
        result.put("ordered", order.equals(api.getKVConfigValue("ORDER_TOPIC_CONFIG", topic, MS)));
        consumer.shutdown();
        producer.shutdown();
        return result;
    }

    private static boolean online(MQClientAPIImpl api, String broker, String group) {
        try {
            return !api.getConsumerConnectionList(broker, group, MS).getConnectionSet().isEmpty();
        } catch (Exception notYet) {
            return false;
        }
    }
}
