package cdr;

import java.time.Duration;

import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.util.OutputTag;

/**
 * The jobs. Numbers come from Flink's own bounded source and become records in an operator with the uid "gen", whose
 * output crosses the network to the operator "slow". Number n is record n % records of generator n / records.
 */
public final class Jobs {
    static final long EPOCH = 1_700_000_000_000L;
    /** Also known to harness/judge.py. */
    private static final int WINDOW_MILLIS = 200;
    private static final int RECORDS_PER_WATERMARK = 50;
    /** Generators of a second source count from here, so that no two records are alike. */
    static final int SECOND = 100;

    private Jobs() {}

    static void build(StreamExecutionEnvironment env, Options options) {
        DataStream<Long> slow;
        switch (options.job) {
            case "a":
                slow = generator(env, options, "gen", 0, options.records, String.class)
                        .keyBy(new Key<>())
                        .process(new Slow.Keyed<>(options))
                        .name("slow").uid("slow").returns(Types.LONG);
                break;
            case "d":
                slow = generator(env, options, "gen", 0, options.records, byte[].class)
                        .rebalance()
                        .process(new Slow.Plain<>(options))
                        .name("slow").uid("slow").returns(Types.LONG);
                break;
            case "g":
                long second = options.secondRecords > 0 ? options.secondRecords : options.records;
                slow = generator(env, options, "gen", 0, options.records, String.class)
                        .keyBy(new Key<>())
                        .connect(generator(env, options, "gen2", SECOND, second, byte[].class).keyBy(new Key<>()))
                        .process(new Slow.Two(options))
                        .name("slow").uid("slow").returns(Types.LONG);
                break;
            case "l":
                slow = generator(env, options, "gen", 0, options.records, String.class)
                        .keyBy(new Key<>())
                        .process(new Lists<>(options))
                        .name("slow").uid("slow").returns(Types.LONG);
                break;
            case "t":
                slow = generator(env, options, "gen", 0, options.records, String.class)
                        .keyBy(new Key<>())
                        .process(new Timed.Timers<>(options))
                        .name("slow").uid("slow")
                        .returns(Types.TUPLE(Types.LONG, Types.INT, Types.LONG, Types.STRING))
                        .keyBy(new Key<>())
                        .window(TumblingEventTimeWindows.of(Duration.ofMillis(WINDOW_MILLIS)))
                        .allowedLateness(Duration.ofDays(1)) // nothing is ever late, and no window is given up early
                        .aggregate(new Timed.Count<>(options), new Timed.Windows(options),
                                Types.LONG, Types.LONG, Types.LONG)
                        .name("window").uid("window");
                break;
            case "w":
                slow = late(env, options);
                break;
            default:
                slow = Shapes.build(env, options);
        }
        slow.sinkTo(new DiscardingSink<>()).uid("sink");
    }

    /** Windows without patience instead of the slow operator. */
    private static DataStream<Long> late(StreamExecutionEnvironment env, Options options) {
        OutputTag<Tuple4<Long, Integer, Long, String>> tooLate =
                new OutputTag<>("late", Types.TUPLE(Types.LONG, Types.INT, Types.LONG, Types.STRING)) {};
        SingleOutputStreamOperator<Long> windows = generator(env, options, "gen", 0, options.records, String.class)
                .keyBy(new Key<>())
                .window(TumblingEventTimeWindows.of(Duration.ofMillis(WINDOW_MILLIS)))
                .sideOutputLateData(tooLate)
                .aggregate(new Timed.Count<>(options), new Late.Windows(options), Types.LONG, Types.LONG, Types.LONG)
                .name("slow").uid("slow");
        return windows.union(windows.getSideOutput(tooLate)
                .process(new Late.Records<>(options))
                .name("late").uid("late").returns(Types.LONG));
    }

    @SuppressWarnings("unchecked")
    public static <P> SingleOutputStreamOperator<Tuple4<Long, Integer, Long, P>> generator(
            StreamExecutionEnvironment env, Options options, String uid, int first, long records, Class<P> payload) {
        TypeInformation<P> type = payload == String.class
                ? (TypeInformation<P>) Types.STRING
                : (TypeInformation<P>) PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO;
        boolean quiet = options.job.equals("w") && options.restores();
        WatermarkStrategy<Long> time = options.timestamps
                ? WatermarkStrategy.<Long>forGenerator(context -> new Now(records, quiet))
                        .withTimestampAssigner((number, none) -> EPOCH + number % records)
                : WatermarkStrategy.noWatermarks();
        NumberSequenceSource numbers = options.ending > 0 && first == 0
                ? new Uneven(options, records)
                : new NumberSequenceSource(0, options.generators * records - 1);
        return env.fromSource(numbers, time, uid + "-numbers")
                .uid(uid + "-numbers").setParallelism(options.sources())
                .map(new ToRecord<P>(options, uid, first, records, payload))
                .name(uid).uid(uid).setParallelism(options.sources())
                .returns(Types.TUPLE(Types.LONG, Types.INT, Types.LONG, type));
    }

    public static final class Key<P> implements KeySelector<Tuple4<Long, Integer, Long, P>, Long> {
        @Override
        public Long getKey(Tuple4<Long, Integer, Long, P> record) {
            return record.f0;
        }
    }

    /** A watermark now and then, a little behind the records; or never. */
    private static final class Now implements WatermarkGenerator<Long> {
        private final long records;
        private final boolean quiet;

        Now(long records, boolean quiet) {
            this.records = records;
            this.quiet = quiet;
        }

        @Override
        public void onEvent(Long number, long timestamp, WatermarkOutput output) {
            if (!quiet && number % records % RECORDS_PER_WATERMARK == RECORDS_PER_WATERMARK - 1) {
                output.emitWatermark(new Watermark(timestamp - 10));
            }
        }

        @Override
        public void onPeriodicEmit(WatermarkOutput output) {}
    }
}
