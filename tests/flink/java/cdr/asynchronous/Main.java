package cdr.asynchronous;

import cdr.Jobs;
import cdr.Options;
import cdr.Run;
import cdr.Seen;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.v2.ValueState;
import org.apache.flink.api.common.state.v2.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/** Job a, whose slow operator does not wait for its state; only the newest Flink of this harness can do that. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) {
        Run.main(arguments, Main::build);
    }

    private static void build(StreamExecutionEnvironment env, Options options) {
        Jobs.generator(env, options, "gen", 0, options.records, String.class)
                .keyBy(new Jobs.Key<>())
                .enableAsyncState()
                .process(new Slow(options))
                .name("slow").uid("slow").returns(Types.LONG)
                .sinkTo(new DiscardingSink<>()).uid("sink");
    }

    private static final class Slow extends KeyedProcessFunction<Long, Tuple4<Long, Integer, Long, String>, Long> {
        private final Seen seen;
        private transient ValueState<Long> counts;

        Slow(Options options) {
            seen = new Seen("slow", options, true);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            seen.open(getRuntimeContext());
            counts = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Tuple4<Long, Integer, Long, String> record, Context context, Collector<Long> out) {
            counts.asyncValue().thenAccept(before -> {
                long count = before == null ? 1 : before + 1;
                counts.asyncUpdate(count).thenAccept(updated -> {
                    seen.record(record, count);
                    out.collect(count);
                });
            });
        }

        @Override
        public void close() {
            seen.close();
        }
    }
}
