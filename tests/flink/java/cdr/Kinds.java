package cdr;

import java.time.Duration;

import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.AggregatingState;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingState;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Counts records as {@link Slow.Keyed} does, and keeps every record of a key in keyed state of each kind, the value and
 * the map with a time to live that nobody outlives. A timer per key fires at the end of the job and writes it all down.
 */
final class Kinds extends KeyedProcessFunction<Long, Tuple4<Long, Integer, Long, String>, Long> {
    private final Seen seen;
    private final Seen kinds;
    private transient ValueState<Long> counts;
    private transient ValueState<String> value;
    private transient ListState<String> list;
    private transient MapState<Long, String> map;
    private transient ReducingState<Long> reducing;
    private transient AggregatingState<Long, Long> aggregating;

    Kinds(Options options) {
        seen = new Seen("slow", options, true);
        kinds = new Seen("kinds", options, true);
    }

    @Override
    public void open(OpenContext context) throws Exception {
        seen.open(getRuntimeContext());
        kinds.open(getRuntimeContext());
        counts = Slow.counts(getRuntimeContext());
        value = getRuntimeContext().getState(mortal(new ValueStateDescriptor<>("value", Types.STRING)));
        list = getRuntimeContext().getListState(new ListStateDescriptor<>("list", Types.STRING));
        map = getRuntimeContext().getMapState(mortal(new MapStateDescriptor<>("map", Types.LONG, Types.STRING)));
        reducing = getRuntimeContext()
                .getReducingState(new ReducingStateDescriptor<>("reducing", Long::sum, Types.LONG));
        aggregating = getRuntimeContext()
                .getAggregatingState(new AggregatingStateDescriptor<>("aggregating", new Sum(), Types.LONG));
    }

    private static <D extends StateDescriptor<?, ?>> D mortal(D descriptor) {
        descriptor.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofDays(1)).build());
        return descriptor;
    }

    @Override
    public void processElement(Tuple4<Long, Integer, Long, String> record, Context context, Collector<Long> out)
            throws Exception {
        long count = Slow.next(counts);
        seen.record(record, count);
        long number = record.f1 * 1_000_000L + record.f2;
        value.update(count + "");
        list.add(record.f3);
        map.put(number, record.f3);
        reducing.add(number);
        aggregating.add(number);
        context.timerService().registerEventTimeTimer(Timed.LATER);
        out.collect(count);
    }

    /** The key, and of each state how many records it tells of or what they add up to. */
    @Override
    public void onTimer(long time, OnTimerContext context, Collector<Long> out) throws Exception {
        long listed = 0;
        long characters = 0;
        for (String text : list.get()) {
            listed++;
            characters += text.length();
        }
        long mapped = 0;
        for (Long number : map.keys()) {
            mapped += number;
            characters -= map.get(number).length();
        }
        kinds.line(context.getCurrentKey() + "," + value.value() + "," + listed + "," + characters + "," + mapped + ","
                + reducing.get() + "," + aggregating.get());
    }

    @Override
    public void close() {
        seen.close();
        kinds.close();
    }

    private static final class Sum implements AggregateFunction<Long, Long, Long> {
        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Long number, Long sum) {
            return sum + number;
        }

        @Override
        public Long getResult(Long sum) {
            return sum;
        }

        @Override
        public Long merge(Long one, Long other) {
            return one + other;
        }
    }

    /** Chained to it: counts records in operator state, and writes down at its end how many it, and who was before it, had. */
    static final class After extends RichMapFunction<Long, Long> implements CheckpointedFunction {
        private final Seen seen;
        private transient ListState<Long> had;
        private transient long count;

        After(Options options) {
            seen = new Seen("after", options, false);
        }

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            had = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("had", Types.LONG));
            for (Long each : had.get()) {
                count += each;
            }
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            had.clear();
            had.add(count);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            seen.open(getRuntimeContext());
        }

        @Override
        public Long map(Long number) {
            count++;
            return number;
        }

        @Override
        public void close() {
            seen.line("" + count);
            seen.close();
        }
    }
}
