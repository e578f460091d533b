package cdr.shipped;

import cdr.Options;
import cdr.Run;

import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;

/**
 * The jobs of the shipped checkpoints that were not made by this harness: the same operators, states and types, so that
 * Flink restores those. Their source is of the old kind and counts by itself; there is one for the newest Flink only.
 */
public final class Main {
    private static final int SECOND = 100;

    private Main() {}

    public static void main(String[] arguments) {
        Run.main(arguments, Main::build);
    }

    private static void build(StreamExecutionEnvironment env, Options options) {
        DataStream<Long> slow;
        switch (options.job) {
            case "a":
                slow = text(env, options)
                        .keyBy(new Key<>())
                        .process(new Slow.Keyed<>(options))
                        .name("slow").uid("slow").returns(Types.LONG);
                break;
            case "b":
            case "e":
                slow = bytes(env, options, "gen", 0)
                        .keyBy(new Key<>())
                        .process(new Slow.Keyed<>(options))
                        .name("slow").uid("slow").returns(Types.LONG);
                break;
            case "d":
                slow = bytes(env, options, "gen", 0)
                        .rebalance()
                        .process(new Slow.Plain<>(options))
                        .name("slow").uid("slow").returns(Types.LONG);
                break;
            case "f":
                slow = aggregated(env, options)
                        .map(new Slow.Aggregated(options))
                        .name("slow").uid("slow").returns(Types.LONG);
                break;
            case "g":
                slow = text(env, options)
                        .keyBy(new Key<>())
                        .connect(bytes(env, options, "gen2", SECOND).keyBy(new Key<>()))
                        .process(new Slow.Two(options))
                        .name("slow").uid("slow").returns(Types.LONG);
                break;
            default:
                throw new IllegalArgumentException("there is no job " + options.job);
        }
        slow.sinkTo(new DiscardingSink<>()).uid("sink");
    }

    private static DataStream<Tuple4<Long, Integer, Long, String>> text(StreamExecutionEnvironment env, Options options) {
        TypeInformation<Tuple4<Long, Integer, Long, String>> type =
                Types.TUPLE(Types.LONG, Types.INT, Types.LONG, Types.STRING);
        return env.addSource(new Generator<>(options, "gen", Generator.Shape.TEXT, 0), "gen", type).uid("gen");
    }

    private static DataStream<Tuple4<Long, Integer, Long, byte[]>> bytes(
            StreamExecutionEnvironment env, Options options, String uid, int first) {
        TypeInformation<Tuple4<Long, Integer, Long, byte[]>> type = Types.TUPLE(
                Types.LONG, Types.INT, Types.LONG, PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);
        return env.addSource(new Generator<>(options, uid, Generator.Shape.BYTES, first), uid, type).uid(uid);
    }

    /** Flink derives the ids of the operators in between from their place in the job, which must be the same. */
    private static DataStream<Row> aggregated(StreamExecutionEnvironment env, Options options) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        TypeInformation<Row> type = Types.ROW_NAMED(
                new String[] {"k", "gen", "seq", "payload"}, Types.LONG, Types.INT, Types.LONG, Types.STRING);
        tables.createTemporaryView("T",
                env.addSource(new Generator<>(options, "gen", Generator.Shape.ROW, 0), "gen", type).uid("gen"));
        return tables.toChangelogStream(tables.sqlQuery(
                "SELECT k, COUNT(*) AS c, LAST_VALUE(gen) AS g, LAST_VALUE(seq) AS s, LAST_VALUE(payload) AS p"
                        + " FROM T GROUP BY k"));
    }

    private static final class Key<P> implements KeySelector<Tuple4<Long, Integer, Long, P>, Long> {
        @Override
        public Long getKey(Tuple4<Long, Integer, Long, P> record) {
            return record.f0;
        }
    }
}
