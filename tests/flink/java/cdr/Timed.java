package cdr;

import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * State that waits for a time. Every record leaves a timer that fires at the end of the job and not before, and every
 * window lives until then; so a restored job tells of all records there ever were, also of those that it did not see.
 */
final class Timed {
    /** Later than any record; only the last watermark of all gets there. */
    static final long LATER = Jobs.EPOCH + 1_000_000_000L;

    private Timed() {}

    /** Counts records as {@link Slow.Keyed} does, and leaves a timer for each. */
    static final class Timers<P>
            extends KeyedProcessFunction<Long, Tuple4<Long, Integer, Long, P>, Tuple4<Long, Integer, Long, P>> {
        private final Options options;
        private final Seen seen;
        private final Seen fired;
        private transient ValueState<Long> counts;

        Timers(Options options) {
            this.options = options;
            seen = new Seen("slow", options, true);
            fired = new Seen("timers", options, true);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            seen.open(getRuntimeContext());
            fired.open(getRuntimeContext());
            counts = Slow.counts(getRuntimeContext());
        }

        @Override
        public void processElement(
                Tuple4<Long, Integer, Long, P> record, Context context, Collector<Tuple4<Long, Integer, Long, P>> out)
                throws Exception {
            seen.record(record, Slow.next(counts));
            context.timerService().registerEventTimeTimer(LATER + record.f1 * options.records + record.f2);
            out.collect(record);
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<Tuple4<Long, Integer, Long, P>> out) {
            long number = time - LATER;
            fired.line(number / options.records + "," + number % options.records + "," + context.getCurrentKey());
        }

        @Override
        public void close() {
            seen.close();
            fired.close();
        }
    }

    /** How many records are in a window; takes twice the time over each, so that records wait before this operator too. */
    static final class Count<P> implements AggregateFunction<Tuple4<Long, Integer, Long, P>, Long, Long> {
        private final Pause pause;

        Count(Options options) {
            pause = new Pause(2 * options.pauseMicros);
        }

        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Tuple4<Long, Integer, Long, P> record, Long count) {
            pause.take();
            return count + 1;
        }

        @Override
        public Long getResult(Long count) {
            return count;
        }

        @Override
        public Long merge(Long one, Long other) {
            return one + other;
        }
    }

    /** Writes a window down when it is given up: its key, its start, and how many records it had when last it fired. */
    static final class Windows extends ProcessWindowFunction<Long, Long, Long, TimeWindow> {
        private static final ValueStateDescriptor<Long> KEY = new ValueStateDescriptor<>("window-key", Types.LONG);
        private static final ValueStateDescriptor<Long> COUNT = new ValueStateDescriptor<>("window-count", Types.LONG);
        private final Seen seen;

        Windows(Options options) {
            seen = new Seen("windows", options, true);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            seen.open(getRuntimeContext());
        }

        @Override
        public void process(Long key, Context context, Iterable<Long> counts, Collector<Long> out) throws Exception {
            long count = counts.iterator().next();
            context.windowState().getState(KEY).update(key);
            context.windowState().getState(COUNT).update(count);
            out.collect(count);
        }

        @Override
        public void clear(Context context) throws Exception {
            seen.line(context.windowState().getState(KEY).value() + "," + (context.window().getStart() - Jobs.EPOCH)
                    + "," + context.windowState().getState(COUNT).value());
            context.windowState().getState(KEY).clear();
            context.windowState().getState(COUNT).clear();
        }

        @Override
        public void close() {
            seen.close();
        }
    }
}
