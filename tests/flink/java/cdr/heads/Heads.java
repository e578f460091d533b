package cdr.heads;

import java.io.Serializable;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.api.common.typeutils.base.IntSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.typeutils.runtime.NullableSerializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.KeyedBackendSerializationProxy;
import org.apache.flink.runtime.state.RegisteredKeyValueStateBackendMetaInfo;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.runtime.state.metainfo.StateMetaInfoSnapshot;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.ArrayType;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.DecimalType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.TimestampType;
import org.apache.flink.table.types.logical.VarCharType;

/** Prints heads of keyed state as Flink writes them, one a line: the name, a tab, the bytes in hexadecimal. */
public final class Heads {
    /** A POJO with a nested one. */
    public static class Order implements Serializable {
        public String userId;
        public long amount;
        public double price;
        public Inner inner;
    }

    public static class Inner implements Serializable {
        public int a;
        public String b;
    }

    public enum Colour { RED, BLUE }

    public static class Generic {
        private final Object any = new Object();
        private Generic(int unused) {}
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, TypeSerializer<?>> keys = new LinkedHashMap<>();
        keys.put("LONG", of(Types.LONG));
        keys.put("INT", of(Types.INT));
        keys.put("STRING", of(Types.STRING));
        keys.put("DOUBLE", of(Types.DOUBLE));
        keys.put("SHORT", of(Types.SHORT));
        keys.put("BYTE", of(Types.BYTE));
        keys.put("BOOLEAN", of(Types.BOOLEAN));
        keys.put("FLOAT", of(Types.FLOAT));
        keys.put("CHAR", of(Types.CHAR));
        keys.put("BIGINT_BIG", of(Types.BIG_INT));
        keys.put("DECIMAL_BIG", of(Types.BIG_DEC));
        keys.put("INSTANT", of(Types.INSTANT));
        keys.put("DATE sql", of(Types.SQL_DATE));
        keys.put("TIME", of(Types.SQL_TIME));
        keys.put("TIMESTAMP", of(Types.SQL_TIMESTAMP));
        keys.put("DATE", of(TypeInformation.of(java.util.Date.class)));
        keys.put("LOCALDATE", of(Types.LOCAL_DATE));
        keys.put("LOCALTIME", of(Types.LOCAL_TIME));
        keys.put("LOCALDATETIME", of(Types.LOCAL_DATE_TIME));
        keys.put("TUPLE<LONG>", of(Types.TUPLE(Types.LONG)));
        keys.put("TUPLE<STRING, STRING>", of(Types.TUPLE(Types.STRING, Types.STRING)));
        keys.put("TUPLE<STRING, LONG>", of(Types.TUPLE(Types.STRING, Types.LONG)));
        keys.put("TUPLE<LONG, TUPLE<INT, STRING>>", of(Types.TUPLE(Types.LONG, Types.TUPLE(Types.INT, Types.STRING))));
        keys.put("ROW<a LONG, b STRING>", of(Types.ROW_NAMED(new String[] {"a", "b"}, Types.LONG, Types.STRING)));
        keys.put("POJO<userId STRING, amount LONG, price DOUBLE, inner POJO<a INT, b STRING>>", of(TypeInformation.of(Order.class)));
        keys.put("NULLABLE<LONG>", NullableSerializer.wrap(of(Types.LONG), false));
        keys.put("ARRAY<LONG>", of(Types.PRIMITIVE_ARRAY(Types.LONG)));
        keys.put("ARRAY<STRING>", of(TypeInformation.of(String[].class)));
        keys.put("ROWDATA<k BIGINT>", row(new BigIntType()));
        keys.put("ROWDATA<k BIGINT, s STRING, d DECIMAL(10, 2), t TIMESTAMP(3), x DOUBLE, i INT>",
                row(new BigIntType(), VarCharType.STRING_TYPE, new DecimalType(10, 2), new TimestampType(3), new DoubleType(), new IntType()));
        keys.put("ROWDATA<a ARRAY<BIGINT>, r ROW<x INT, y STRING>>",
                row(new ArrayType(new BigIntType()), RowType.of(new IntType(), VarCharType.STRING_TYPE)));
        keys.put("unknown enum", of(TypeInformation.of(Colour.class)));
        keys.put("unknown generic", of(TypeInformation.of(Generic.class)));
        for (Map.Entry<String, TypeSerializer<?>> key : keys.entrySet()) {
            print("key " + key.getKey(), key.getValue(), List.of());
        }
        TypeSerializer<?> order = keys.get("TUPLE<STRING, LONG>");
        TypeSerializer<?> record = row(new BigIntType(), VarCharType.STRING_TYPE, new DoubleType());
        print("window list", of(Types.STRING), List.of(state("window-contents", StateDescriptor.Type.LIST, new ListSerializer<>(order), true)));
        print("window pojo", of(Types.STRING), List.of(state("window-contents", StateDescriptor.Type.LIST, new ListSerializer<>(keys.get("POJO<userId STRING, amount LONG, price DOUBLE, inner POJO<a INT, b STRING>>")), true)));
        print("window reduced", of(Types.STRING), List.of(state("window-contents", StateDescriptor.Type.REDUCING, order, true)));
        print("window aggregated", of(Types.STRING), List.of(state("window-contents", StateDescriptor.Type.AGGREGATING, order, true)));
        print("join value", row(new BigIntType()), List.of(state("left-records", StateDescriptor.Type.VALUE, record, false),
                state("right-records", StateDescriptor.Type.MAP, new MapSerializer<>(record, IntSerializer.INSTANCE), false)));
        print("join unique", row(new BigIntType()), List.of(state("left-records", StateDescriptor.Type.MAP, new MapSerializer<>(row(new BigIntType()), record), false),
                state("right-records", StateDescriptor.Type.VALUE, of(new TypeHint<Tuple2<Long, Integer>>() {}.getTypeInfo()), false)));
        print("after unknown", of(Types.LONG), List.of(state("own", StateDescriptor.Type.VALUE, keys.get("unknown generic"), false),
                state("left-records", StateDescriptor.Type.VALUE, record, false)));
    }

    private static <T> TypeSerializer<T> of(TypeInformation<T> type) {
        return type.createSerializer(new SerializerConfigImpl());
    }

    private static RowDataSerializer row(LogicalType... types) {
        return new RowDataSerializer(types);
    }

    private static StateMetaInfoSnapshot state(String name, StateDescriptor.Type type, TypeSerializer<?> value, boolean window) {
        TypeSerializer<?> namespace = window ? new TimeWindow.Serializer() : VoidNamespaceSerializer.INSTANCE;
        return new RegisteredKeyValueStateBackendMetaInfo<>(type, name, namespace, value).snapshot();
    }

    private static void print(String name, TypeSerializer<?> key, List<StateMetaInfoSnapshot> states) throws Exception {
        DataOutputSerializer out = new DataOutputSerializer(1024);
        new KeyedBackendSerializationProxy<>(key, states, false).write(out);
        StringBuilder line = new StringBuilder(name).append("\t");
        for (byte each : out.getCopyOfBuffer()) {
            line.append(String.format("%02x", each));
        }
        System.out.println(line);
    }
}
