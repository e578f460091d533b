package cdr;

import java.util.Map;

import org.apache.flink.api.common.functions.FilterFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.functions.co.KeyedBroadcastProcessFunction;
import org.apache.flink.util.Collector;

/** Counts what arrives by key, and keeps the squares of what is broadcast. */
final class Ruled extends KeyedBroadcastProcessFunction<Long, Long, Long, Long> {
    static final long RULES = 30;
    /** So many that their source is still at it when checkpoints are taken. */
    static final long NUMBERS = 60_000;
    static final MapStateDescriptor<Long, Long> SQUARES =
            new MapStateDescriptor<>("squares", Types.LONG, Types.LONG);

    private final Seen seen;
    private transient ValueState<Long> counts;

    Ruled(Options options) {
        seen = new Seen("ruled", options, false);
    }

    @Override
    public void open(OpenContext context) throws Exception {
        seen.open(getRuntimeContext());
        counts = Slow.counts(getRuntimeContext());
    }

    /** The key, how often it came, and how many squares are known. */
    @Override
    public void processElement(Long number, ReadOnlyContext context, Collector<Long> out) throws Exception {
        long known = 0;
        for (Map.Entry<Long, Long> square : context.getBroadcastState(SQUARES).immutableEntries()) {
            known += square.getValue() == square.getKey() * square.getKey() ? 1 : 1000;
        }
        seen.line(number + "," + Slow.next(counts) + "," + known);
        out.collect(number);
    }

    @Override
    public void processBroadcastElement(Long number, Context context, Collector<Long> out) throws Exception {
        context.getBroadcastState(SQUARES).put(number, number * number);
    }

    @Override
    public void close() {
        seen.close();
    }

    /** Only the first numbers are rules; the others take their time, so that a restored job is told of no rule again. */
    static final class First implements FilterFunction<Long> {
        private final Pause pause;

        First(Options options) {
            pause = new Pause(options.pauseMicros);
        }

        @Override
        public boolean filter(Long number) {
            if (number > RULES) {
                pause.take();
            }
            return number <= RULES;
        }
    }
}
