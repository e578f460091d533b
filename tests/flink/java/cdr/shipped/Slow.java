package cdr.shipped;

import cdr.Options;
import cdr.Seen;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.functions.RuntimeContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.ProcessFunction;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.table.data.binary.BinaryRowData;
import org.apache.flink.table.data.writer.BinaryRowWriter;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.Collector;

/** The operators that everybody waited for. The state "cnt" of a key is how many records it had, and a sum. */
final class Slow {
    private Slow() {}

    /** Counts, and writes down what it sees. */
    private static final class Counter implements java.io.Serializable {
        private final Options options;
        private final Seen seen;
        private transient ValueState<Tuple2<Long, Long>> counts;
        private transient int subtask;

        Counter(Options options) {
            this.options = options;
            this.seen = new Seen("slow", options, true);
        }

        void open(RuntimeContext context, boolean counting) throws Exception {
            seen.open(context);
            subtask = context.getTaskInfo().getIndexOfThisSubtask();
            if (counting) {
                counts = context.getState(new ValueStateDescriptor<>("cnt", Types.TUPLE(Types.LONG, Types.LONG)));
            }
        }

        long next(long sequence) throws Exception {
            Tuple2<Long, Long> before = counts.value();
            Tuple2<Long, Long> now =
                    before == null ? Tuple2.of(1L, sequence) : Tuple2.of(before.f0 + 1, before.f1 + sequence);
            counts.update(now);
            return now.f0;
        }

        void saw(Object key, int generator, long sequence, Object content, Object hashed, long count) {
            int owner = hashed == null
                    ? subtask
                    : KeyGroupRangeAssignment.assignKeyToParallelOperator(
                            hashed, options.maxParallelism, options.parallelism);
            seen.record(generator, sequence, (long) key, Contents.intact(generator, sequence, content),
                    owner == subtask, count);
        }
    }

    static final class Keyed<P> extends KeyedProcessFunction<Long, Tuple4<Long, Integer, Long, P>, Long> {
        private final Counter counter;

        Keyed(Options options) {
            counter = new Counter(options);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            counter.open(getRuntimeContext(), true);
        }

        @Override
        public void processElement(Tuple4<Long, Integer, Long, P> record, Context context, Collector<Long> out)
                throws Exception {
            long count = counter.next(record.f2);
            counter.saw(record.f0, record.f1, record.f2, record.f3, record.f0, count);
            out.collect(count);
        }

        @Override
        public void close() {
            counter.seen.close();
        }
    }

    static final class Plain<P> extends ProcessFunction<Tuple4<Long, Integer, Long, P>, Long> {
        private final Counter counter;

        Plain(Options options) {
            counter = new Counter(options);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            counter.open(getRuntimeContext(), false);
        }

        @Override
        public void processElement(Tuple4<Long, Integer, Long, P> record, Context context, Collector<Long> out) {
            counter.saw(record.f0, record.f1, record.f2, record.f3, null, 0);
            out.collect(1L);
        }

        @Override
        public void close() {
            counter.seen.close();
        }
    }

    static final class Two
            extends KeyedCoProcessFunction<
                    Long, Tuple4<Long, Integer, Long, String>, Tuple4<Long, Integer, Long, byte[]>, Long> {
        private final Counter counter;

        Two(Options options) {
            counter = new Counter(options);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            counter.open(getRuntimeContext(), true);
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
            long count = counter.next(record.f2);
            counter.saw(record.f0, record.f1, record.f2, record.f3, record.f0, count);
            out.collect(count);
        }

        @Override
        public void close() {
            counter.seen.close();
        }
    }

    /** Behind the aggregation of Flink SQL: a row (key, count, generator, sequence, payload) for every record. */
    static final class Aggregated extends RichMapFunction<Row, Long> {
        private final Counter counter;

        Aggregated(Options options) {
            counter = new Counter(options);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            counter.open(getRuntimeContext(), false);
        }

        @Override
        public Long map(Row row) {
            if (row.getKind() == RowKind.INSERT || row.getKind() == RowKind.UPDATE_AFTER) {
                BinaryRowData key = new BinaryRowData(1);
                BinaryRowWriter writer = new BinaryRowWriter(key);
                writer.writeLong(0, (Long) row.getField(0));
                writer.complete();
                counter.saw(row.getField(0), (Integer) row.getField(2), (Long) row.getField(3), row.getField(4), key,
                        (Long) row.getField(1));
            }
            return 1L;
        }

        @Override
        public void close() {
            counter.seen.close();
        }
    }
}
