package cdr;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * Windows that wait for nobody. After a restore the sources say nothing of time until they end, so all that a window
 * knows before is what was in flight: a watermark too many, or too early, makes records late; one too few lets windows
 * wait for the end.
 */
final class Late {
    private Late() {}

    /** Writes a window down when it fires: its key, its start, how many records it had, and whether all was over. */
    static final class Windows extends ProcessWindowFunction<Long, Long, Long, TimeWindow> {
        private final Seen seen;

        Windows(Options options) {
            seen = new Seen("windows", options, true);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            seen.open(getRuntimeContext());
        }

        @Override
        public void process(Long key, Context context, Iterable<Long> counts, Collector<Long> out) {
            long count = counts.iterator().next();
            int over = context.currentWatermark() == Long.MAX_VALUE ? 1 : 0;
            seen.line(key + "," + (context.window().getStart() - Jobs.EPOCH) + "," + count + "," + over);
            out.collect(count);
        }

        @Override
        public void close() {
            seen.close();
        }
    }

    /** Writes down the records that came after their window had fired. */
    static final class Records<P> extends ProcessFunction<Tuple4<Long, Integer, Long, P>, Long> {
        private final Seen seen;

        Records(Options options) {
            seen = new Seen("late", options, true);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            seen.open(getRuntimeContext());
        }

        @Override
        public void processElement(Tuple4<Long, Integer, Long, P> record, Context context, Collector<Long> out) {
            seen.line(record.f1 + "," + record.f2 + "," + record.f0);
        }

        @Override
        public void close() {
            seen.close();
        }
    }
}
