package cdr;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RuntimeContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.util.Collector;

/** Operators that everybody waits for. The keyed ones count the records of each key in Flink's state. */
final class Slow {
    private Slow() {}

    static ValueState<Long> counts(RuntimeContext context) {
        return context.getState(new ValueStateDescriptor<>("count", Types.LONG));
    }

    static long next(ValueState<Long> counts) throws Exception {
        Long before = counts.value();
        long count = before == null ? 1 : before + 1;
        counts.update(count);
        return count;
    }

    static final class Keyed<P> extends KeyedProcessFunction<Long, Tuple4<Long, Integer, Long, P>, Long> {
        private final Seen seen;
        private transient ValueState<Long> counts;

        Keyed(Options options) {
            this(options, "slow");
        }

        /** Writes down what it has seen by another name. */
        Keyed(Options options, String name) {
            seen = new Seen(name, options, true);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            seen.open(getRuntimeContext());
            counts = counts(getRuntimeContext());
        }

        @Override
        public void processElement(Tuple4<Long, Integer, Long, P> record, Context context, Collector<Long> out)
                throws Exception {
            long count = next(counts);
            seen.record(record, count);
            out.collect(count);
        }

        @Override
        public void close() {
            seen.close();
        }
    }

    static final class Plain<P> extends ProcessFunction<Tuple4<Long, Integer, Long, P>, Long> {
        private final Seen seen;

        Plain(Options options) {
            seen = new Seen("slow", options, false);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            seen.open(getRuntimeContext());
        }

        @Override
        public void processElement(Tuple4<Long, Integer, Long, P> record, Context context, Collector<Long> out)
                throws Exception {
            seen.record(record, 0);
            out.collect(record.f2);
        }

        @Override
        public void close() {
            seen.close();
        }
    }

    static final class Two
            extends KeyedCoProcessFunction<
                    Long, Tuple4<Long, Integer, Long, String>, Tuple4<Long, Integer, Long, byte[]>, Long> {
        private final Seen seen;
        private transient ValueState<Long> counts;

        Two(Options options) {
            seen = new Seen("slow", options, true);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            seen.open(getRuntimeContext());
            counts = counts(getRuntimeContext());
        }

        @Override
        public void processElement1(Tuple4<Long, Integer, Long, String> record, Context context, Collector<Long> out)
                throws Exception {
            process(record, out);
        }

        @Override
        public void processElement2(Tuple4<Long, Integer, Long, byte[]> record, Context context, Collector<Long> out)
                throws Exception {
            process(record, out);
        }

        private void process(Tuple4<Long, Integer, Long, ?> record, Collector<Long> out) throws Exception {
            long count = next(counts);
            seen.record(record, count);
            out.collect(count);
        }

        @Override
        public void close() {
            seen.close();
        }
    }
}
