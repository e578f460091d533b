package cdr;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.Partitioner;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.datastream.BroadcastStream;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/** Jobs whose graph is what matters: partitioners of every kind, unions, side outputs, keyed state of every kind. */
final class Shapes {
    private static final TypeInformation<Tuple4<Long, Integer, Long, String>> STRINGS =
            Types.TUPLE(Types.LONG, Types.INT, Types.LONG, Types.STRING);

    private Shapes() {}

    static DataStream<Long> build(StreamExecutionEnvironment env, Options options) {
        switch (options.job) {
            case "c":
                return ruled(env, options);
            case "k":
                return strings(env, options, "gen", 0)
                        .keyBy(new Jobs.Key<>())
                        .process(new Kinds(options))
                        .name("slow").uid("slow").returns(Types.LONG)
                        .map(new Kinds.After(options))
                        .name("after").uid("after").returns(Types.LONG);
            case "m":
            case "v":
                return between(env, options)
                        .keyBy(new Jobs.Key<>())
                        .process(new Slow.Keyed<>(options))
                        .name("slow").uid("slow").returns(Types.LONG);
            case "o":
                return sides(env, options);
            case "p":
                return partitioned(Jobs.generator(env, options, "gen", 0, options.records, byte[].class), options)
                        .process(new Slow.Plain<>(options))
                        .name("slow").uid("slow").returns(Types.LONG);
            case "u":
                return strings(env, options, "gen", 0)
                        .union(strings(env, options, "gen2", Jobs.SECOND))
                        .keyBy(new Jobs.Key<>())
                        .process(new Slow.Keyed<>(options))
                        .name("slow").uid("slow").returns(Types.LONG);
            default:
                throw new IllegalArgumentException("there is no job " + options.job);
        }
    }

    private static SingleOutputStreamOperator<Tuple4<Long, Integer, Long, String>> strings(
            StreamExecutionEnvironment env, Options options, String uid, int first) {
        return Jobs.generator(env, options, uid, first, options.records, String.class);
    }

    private static <T extends Tuple4<Long, Integer, Long, ?>> DataStream<T> partitioned(
            DataStream<T> records, Options options) {
        switch (options.partitioner) {
            case "custom":
                return records.partitionCustom(new Modulo(), new First<>());
            case "global":
                return records.global();
            case "rebalance":
                return records.rebalance();
            case "shuffle":
                return records.shuffle();
            default:
                throw new IllegalArgumentException("there is no partitioner " + options.partitioner);
        }
    }

    /** Behind the generators, each with some of them, a chain of which only the last operator has state. */
    private static DataStream<Tuple4<Long, Integer, Long, String>> between(
            StreamExecutionEnvironment env, Options options) {
        return strings(env, options, "gen", 0)
                .rescale()
                .map(record -> record)
                .name("mid").uid("mid").returns(STRINGS)
                .map(new Middle(options, options.job.equals("v")))
                .name("tail").uid("tail").returns(STRINGS);
    }

    /** Odd records leave the generator by a side output and meet an operator of their own. */
    private static DataStream<Long> sides(StreamExecutionEnvironment env, Options options) {
        OutputTag<Tuple4<Long, Integer, Long, String>> odd = new OutputTag<>("odd", STRINGS) {};
        SingleOutputStreamOperator<Tuple4<Long, Integer, Long, String>> even = strings(env, options, "gen", 0)
                .process(new Split(odd))
                .name("split").uid("split").setParallelism(options.sources()).returns(STRINGS);
        DataStream<Long> slow = even.keyBy(new Jobs.Key<>())
                .process(new Slow.Keyed<>(options))
                .name("slow").uid("slow").returns(Types.LONG);
        DataStream<Long> side = even.getSideOutput(odd)
                .keyBy(new Jobs.Key<>())
                .process(new Slow.Keyed<>(options, "side"))
                .name("side").uid("side").returns(Types.LONG);
        return slow.union(side);
    }

    /** Behind the slow operator, one with broadcast state; Flink stores nothing in flight on the way there. */
    private static DataStream<Long> ruled(StreamExecutionEnvironment env, Options options) {
        BroadcastStream<Long> rules = env
                .fromSource(new NumberSequenceSource(1, Ruled.NUMBERS), WatermarkStrategy.noWatermarks(), "rules-numbers")
                .uid("rules-numbers")
                .filter(new Ruled.First(options))
                .name("rules").uid("rules").returns(Types.LONG)
                .broadcast(Ruled.SQUARES);
        return strings(env, options, "gen", 0)
                .keyBy(new Jobs.Key<>())
                .process(new Slow.Keyed<>(options))
                .name("slow").uid("slow").returns(Types.LONG)
                .keyBy(count -> count, Types.LONG)
                .connect(rules)
                .process(new Ruled(options))
                .name("ruled").uid("ruled").returns(Types.LONG);
    }

    /** No lambda: Flink could not tell the type of what it gives. */
    private static final class First<T extends Tuple4<Long, Integer, Long, ?>> implements KeySelector<T, Long> {
        @Override
        public Long getKey(T record) {
            return record.f0;
        }
    }

    private static final class Modulo implements Partitioner<Long> {
        @Override
        public int partition(Long key, int partitions) {
            return (int) (key % partitions);
        }
    }

    private static final class Split
            extends ProcessFunction<Tuple4<Long, Integer, Long, String>, Tuple4<Long, Integer, Long, String>> {
        private final OutputTag<Tuple4<Long, Integer, Long, String>> odd;

        Split(OutputTag<Tuple4<Long, Integer, Long, String>> odd) {
            this.odd = odd;
        }

        @Override
        public void processElement(Tuple4<Long, Integer, Long, String> record, Context context,
                Collector<Tuple4<Long, Integer, Long, String>> out) {
            if (record.f2 % 2 == 1) {
                context.output(odd, record);
            } else {
                out.collect(record);
            }
        }
    }
}
