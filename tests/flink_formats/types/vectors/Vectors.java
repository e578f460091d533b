// Writes vectors.jsonl: values, the bytes Flink's own serializers give them, and the key groups Flink puts them in.
// Needs Flink's jars on the class path, and flink-table-planner.jar out of the planner loader for SQL keys:
//   javac -cp "$JARS" -d . Vectors.java && java -cp ".:$JARS" Vectors > vectors.jsonl && gzip -9n vectors.jsonl
import java.io.ByteArrayOutputStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.BasicArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.BasicTypeInfo;
import org.apache.flink.api.common.typeinfo.LocalTimeTypeInfo;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.SqlTimeTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.tuple.Tuple;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.typeutils.ObjectArrayTypeInfo;
import org.apache.flink.api.java.typeutils.runtime.NullableSerializer;
import org.apache.flink.core.memory.DataOutputViewStreamWrapper;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.table.data.DecimalData;
import org.apache.flink.table.data.GenericArrayData;
import org.apache.flink.table.data.GenericMapData;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.planner.plan.utils.KeySelectorUtil;
import org.apache.flink.table.runtime.keyselector.RowDataKeySelector;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.utils.LogicalTypeParser;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

public class Vectors {
    static final Random random = new Random(20240229);
    static final int GROUPS = 128;

    public static class Point {
        public long zeta;
        public String alpha;
        public Integer mid;
        public int[] cells;
        public Tuple2<Long, String> pair;
    }

    // --- output ---

    static String json(Object o) {
        if (o == null) return "null";
        if (o instanceof Boolean) return o.toString();
        if (o instanceof Float || o instanceof Double) {
            double d = ((Number) o).doubleValue();
            return Double.isNaN(d) || Double.isInfinite(d) ? "\"" + d + "\"" : Double.toString(d);
        }
        if (o instanceof Byte || o instanceof Short || o instanceof Integer || o instanceof Long) return o.toString();
        if (o instanceof byte[]) return "\"" + hex((byte[]) o) + "\"";
        if (o instanceof Map) {
            List<String> parts = new ArrayList<>();
            ((Map<?, ?>) o).forEach((k, v) -> parts.add(json(k) + ": " + json(v)));
            return "{" + String.join(", ", parts) + "}";
        }
        if (o instanceof List) {
            List<String> parts = new ArrayList<>();
            for (Object e : (List<?>) o) parts.add(json(e));
            return "[" + String.join(", ", parts) + "]";
        }
        StringBuilder out = new StringBuilder("\"");
        for (char c : o.toString().toCharArray()) {
            if (c == '"' || c == '\\') out.append('\\').append(c);
            else if (c < 32 || c > 126) out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }

    static String hex(byte[] bytes) {
        StringBuilder out = new StringBuilder();
        for (byte b : bytes) out.append(String.format("%02x", b));
        return out.toString();
    }

    static Map<String, Object> fields(Object... pairs) {
        Map<String, Object> result = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) result.put((String) pairs[i], pairs[i + 1]);
        return result;
    }

    static <T> byte[] bytes(TypeSerializer<T> serializer, T value) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        serializer.serialize(value, new DataOutputViewStreamWrapper(out));
        return out.toByteArray();
    }

    static int group(Object key) {
        return KeyGroupRangeAssignment.assignToKeyGroup(key, GROUPS);
    }

    static void line(String type, byte[] bytes, Object fields, String kind, Map<String, Object> groups) {
        System.out.println(json(fields("type", type, "hex", bytes, "fields", fields, "row_kind", kind, "groups", groups)));
    }

    static <T> void scalar(String type, TypeSerializer<T> serializer, boolean key, List<T> values) throws Exception {
        for (T value : values)
            line(type, bytes(serializer, value), fields("f0", show(value)), null, key && value != null ? fields("f0", group(value)) : null);
    }

    static <T> void scalar(String type, TypeInformation<T> info, boolean key, List<T> values) throws Exception {
        scalar(type, info.createSerializer(new SerializerConfigImpl()), key, values);
    }

    /** The value as it is to be shown. */
    static Object show(Object o) {
        if (o instanceof java.sql.Timestamp) return ((java.sql.Timestamp) o).toInstant().toString();
        if (o instanceof java.util.Date) return Instant.ofEpochMilli(((java.util.Date) o).getTime()).toString();
        if (o instanceof LocalTime) return seconds(o.toString());
        if (o instanceof LocalDateTime) return ((LocalDateTime) o).toLocalDate() + "T" + seconds(((LocalDateTime) o).toLocalTime().toString());
        if (o instanceof Object[]) {
            List<Object> list = new ArrayList<>();
            for (Object e : (Object[]) o) list.add(show(e));
            return list;
        }
        if (o instanceof Tuple) {
            Map<String, Object> result = new LinkedHashMap<>();
            for (int i = 0; i < ((Tuple) o).getArity(); i++) result.put("f" + i, show(((Tuple) o).getField(i)));
            return result;
        }
        if (o != null && o.getClass().isArray() && !(o instanceof byte[])) {
            List<Object> list = new ArrayList<>();
            for (int i = 0; i < java.lang.reflect.Array.getLength(o); i++) list.add(java.lang.reflect.Array.get(o, i));
            return list;
        }
        return o;
    }

    static String seconds(String time) {
        return time.length() == 5 ? time + ":00" : time;
    }

    // --- values ---

    static String text(int length) {
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < length; i++) {
            int pick = random.nextInt(10);
            if (pick < 6) out.append((char) (32 + random.nextInt(95)));
            else if (pick == 6) out.append((char) random.nextInt(0x80));
            else if (pick == 7) out.append((char) (0x80 + random.nextInt(0x780)));
            else if (pick == 8) out.append((char) (0x800 + random.nextInt(0xD000)));
            else out.appendCodePoint(0x10000 + random.nextInt(0x100000));
        }
        return out.toString();
    }

    static List<String> texts() {
        List<String> result = new ArrayList<>(Arrays.asList("", "a", "hello", "\u0000", "\u007f\u0080\u3fff\u4000\uffff", "\ud83d\ude00", "ä€😀"));
        for (int i = 0; i < 20; i++) result.add(text(random.nextInt(40)));
        result.add(text(127));
        result.add(text(300));
        result.add("x".repeat(126));
        result.add("x".repeat(127));
        result.add("x".repeat(20000));
        return result;
    }

    static List<Long> longs() {
        List<Long> result = new ArrayList<>(Arrays.asList(0L, 1L, -1L, 42L, Long.MAX_VALUE, Long.MIN_VALUE, 1L << 32, -(1L << 32)));
        for (int i = 0; i < 12; i++) result.add(random.nextLong() >> random.nextInt(63));
        return result;
    }

    static List<BigInteger> bigs() {
        List<BigInteger> result = new ArrayList<>(Arrays.asList(null, BigInteger.ZERO, BigInteger.ONE, BigInteger.TEN, new BigInteger("10"), new BigInteger("0")));
        for (long l : longs()) result.add(BigInteger.valueOf(l));
        for (int bits : new int[] {31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 500, 4001}) {
            result.add(BigInteger.ONE.shiftLeft(bits));
            result.add(BigInteger.ONE.shiftLeft(bits).negate());
            result.add(new BigInteger(bits, random));
            result.add(new BigInteger(bits, random).negate());
        }
        return result;
    }

    static List<BigDecimal> decimals() {
        List<BigDecimal> result = new ArrayList<>();
        result.add(null);
        for (String s : new String[] {"0", "0.00", "0E-10", "0E+5", "1E+3", "1.50", "-1.5", "0.000001", "0.0000001", "123456789.987654321", "1E-2147483647", "9E+2147483647"}) result.add(new BigDecimal(s));
        for (BigInteger unscaled : bigs()) if (unscaled != null) result.add(new BigDecimal(unscaled, random.nextInt(60) - 20));
        return result;
    }

    static List<LocalDate> dates() {
        List<LocalDate> result = new ArrayList<>(Arrays.asList(null, LocalDate.MIN, LocalDate.MAX, LocalDate.EPOCH, LocalDate.of(2024, 2, 29), LocalDate.of(0, 1, 1), LocalDate.of(-1, 12, 31), LocalDate.of(9999, 12, 31), LocalDate.of(10000, 1, 1)));
        for (int i = 0; i < 20; i++) result.add(LocalDate.ofEpochDay(random.nextInt(2_000_000) - 1_000_000));
        return result;
    }

    static List<LocalTime> times() {
        List<LocalTime> result = new ArrayList<>(Arrays.asList(null, LocalTime.MIN, LocalTime.MAX, LocalTime.NOON, LocalTime.of(1, 2), LocalTime.of(1, 2, 3, 4), LocalTime.of(1, 2, 3, 4000), LocalTime.of(1, 2, 3, 4000000)));
        for (int i = 0; i < 15; i++) result.add(LocalTime.ofNanoOfDay((long) (random.nextDouble() * 86_399_999_999_999L)));
        return result;
    }

    static void scalars() throws Exception {
        scalar("BOOLEAN", BasicTypeInfo.BOOLEAN_TYPE_INFO, true, Arrays.asList(true, false));
        scalar("BYTE", BasicTypeInfo.BYTE_TYPE_INFO, true, Arrays.asList((byte) 0, (byte) -1, (byte) 127, (byte) -128, (byte) 5));
        scalar("SHORT", BasicTypeInfo.SHORT_TYPE_INFO, true, Arrays.asList((short) 0, (short) -1, Short.MAX_VALUE, Short.MIN_VALUE));
        List<Integer> ints = new ArrayList<>();
        for (long l : longs()) ints.add((int) l);
        scalar("INT", BasicTypeInfo.INT_TYPE_INFO, true, ints);
        scalar("LONG", BasicTypeInfo.LONG_TYPE_INFO, true, longs());
        scalar("FLOAT", BasicTypeInfo.FLOAT_TYPE_INFO, true, Arrays.asList(0f, -0f, 1f, Float.NaN, Float.intBitsToFloat(0xffc12345), Float.MAX_VALUE, Float.MIN_VALUE, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY, 0.1f));
        scalar("DOUBLE", BasicTypeInfo.DOUBLE_TYPE_INFO, true, Arrays.asList(0d, -0d, 1d, Double.NaN, Double.longBitsToDouble(0xfff8123456789abcL), Double.MAX_VALUE, Double.MIN_VALUE, Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY, 0.1, -1e300));
        scalar("CHAR", BasicTypeInfo.CHAR_TYPE_INFO, true, Arrays.asList('a', '\0', '\u007f', '\u0080', '\u07ff', '\u0800', '\uffff', 'ä'));
        List<String> strings = texts();
        strings.add(null);
        scalar("STRING", BasicTypeInfo.STRING_TYPE_INFO, true, strings);
        byte[] noise = new byte[1000];
        random.nextBytes(noise);
        scalar("BYTES", PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO, false, Arrays.asList(new byte[0], new byte[] {0}, new byte[] {-1, 0, 1}, noise));
        scalar("BIGINT_BIG", BasicTypeInfo.BIG_INT_TYPE_INFO, true, bigs());
        scalar("DECIMAL_BIG", BasicTypeInfo.BIG_DEC_TYPE_INFO, true, decimals());
        List<Instant> instants = new ArrayList<>(Arrays.asList(null, Instant.MIN, Instant.MAX, Instant.EPOCH, Instant.ofEpochSecond(-1, 1), Instant.ofEpochMilli(1700000000123L)));
        for (int i = 0; i < 15; i++) instants.add(Instant.ofEpochSecond(random.nextLong() >> 24, random.nextInt(1_000_000_000)));
        scalar("INSTANT", BasicTypeInfo.INSTANT_TYPE_INFO, true, instants);
        scalar("DATE", BasicTypeInfo.DATE_TYPE_INFO, true, Arrays.asList(null, new java.util.Date(0), new java.util.Date(Long.MAX_VALUE), new java.util.Date(Long.MIN_VALUE + 1), new java.util.Date(-1), new java.util.Date(1700000000123L)));
        scalar("DATE", SqlTimeTypeInfo.DATE, true, Arrays.asList(null, new java.sql.Date(0), new java.sql.Date(1700000000123L)));
        scalar("TIME", SqlTimeTypeInfo.TIME, true, Arrays.asList(null, new java.sql.Time(0), new java.sql.Time(86399999L), new java.sql.Time(-3600000L)));
        List<java.sql.Timestamp> stamps = new ArrayList<>();
        stamps.add(null);
        for (Instant i : instants) if (i != null && Math.abs(i.getEpochSecond()) < 1L << 40) stamps.add(java.sql.Timestamp.from(i));
        scalar("TIMESTAMP", SqlTimeTypeInfo.TIMESTAMP, true, stamps);
        scalar("LOCALDATE", LocalTimeTypeInfo.LOCAL_DATE, true, dates());
        scalar("LOCALTIME", LocalTimeTypeInfo.LOCAL_TIME, true, times());
        List<LocalDateTime> both = new ArrayList<>();
        both.add(null);
        for (LocalDate d : dates()) for (LocalTime t : times()) if (d != null && t != null && random.nextInt(8) == 0) both.add(LocalDateTime.of(d, t));
        both.add(LocalDateTime.MIN);
        both.add(LocalDateTime.MAX);
        scalar("LOCALDATETIME", LocalTimeTypeInfo.LOCAL_DATE_TIME, true, both);
    }

    static void arrays() throws Exception {
        scalar("ARRAY<LONG>", PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO, false, Arrays.asList(new long[0], new long[] {1, -1, Long.MIN_VALUE}));
        scalar("ARRAY<BOOLEAN>", PrimitiveArrayTypeInfo.BOOLEAN_PRIMITIVE_ARRAY_TYPE_INFO, false, Arrays.asList(new boolean[0], new boolean[] {true, false, true}));
        scalar("ARRAY<CHAR>", PrimitiveArrayTypeInfo.CHAR_PRIMITIVE_ARRAY_TYPE_INFO, false, Arrays.asList(new char[0], new char[] {'a', 'ä', '\0'}));
        scalar("ARRAY<DOUBLE>", PrimitiveArrayTypeInfo.DOUBLE_PRIMITIVE_ARRAY_TYPE_INFO, false, Arrays.asList(new double[0], new double[] {1.5, Double.NaN}));
        scalar("ARRAY<NULLABLE<LONG>>", BasicArrayTypeInfo.LONG_ARRAY_TYPE_INFO, false, Arrays.asList(new Long[0], new Long[] {1L, null, -1L}));
        scalar("ARRAY<STRING>", BasicArrayTypeInfo.STRING_ARRAY_TYPE_INFO, false, Arrays.asList(new String[0], new String[] {"", null, "ä", "abc"}));
        TypeInformation<Tuple2<Integer, String>> pair = TypeInformation.of(new TypeHint<Tuple2<Integer, String>>() {});
        @SuppressWarnings("unchecked")
        Tuple2<Integer, String>[] pairs = new Tuple2[] {Tuple2.of(1, "a"), null, Tuple2.of(-1, "ä")};
        @SuppressWarnings("unchecked")
        ObjectArrayTypeInfo<Tuple2<Integer, String>[], Tuple2<Integer, String>> info = (ObjectArrayTypeInfo<Tuple2<Integer, String>[], Tuple2<Integer, String>>) (Object) ObjectArrayTypeInfo.getInfoFor(pair);
        scalar("ARRAY<TUPLE<INT, STRING>>", info, false, Arrays.<Tuple2<Integer, String>[]>asList(pairs));
        scalar("NULLABLE<LONG>", NullableSerializer.wrap(BasicTypeInfo.LONG_TYPE_INFO.createSerializer(new SerializerConfigImpl()), false), true, Arrays.asList(null, 7L, -7L));
    }

    static void structs() throws Exception {
        TypeInformation<Tuple3<Long, String, Tuple2<Integer, Boolean>>> info = TypeInformation.of(new TypeHint<Tuple3<Long, String, Tuple2<Integer, Boolean>>>() {});
        TypeSerializer<Tuple3<Long, String, Tuple2<Integer, Boolean>>> serializer = info.createSerializer(new SerializerConfigImpl());
        for (int i = 0; i < 20; i++) {
            String s = random.nextInt(5) == 0 ? null : text(random.nextInt(10));
            Tuple3<Long, String, Tuple2<Integer, Boolean>> t = Tuple3.of(random.nextLong(), s, Tuple2.of(random.nextInt(), random.nextBoolean()));
            Map<String, Object> groups = fields("f0", group(t.f0), "f0,f1", group(Tuple2.of(t.f0, t.f1)), "f1,f0", group(Tuple2.of(t.f1, t.f0)), "f2.f0", group(t.f2.f0), "f2", group(t.f2), "f2,f0", group(Tuple2.of(t.f2, t.f0)), "f0,f1,f2", group(t));
            if (s != null) groups.put("f1", group(s));
            line("TUPLE<LONG, STRING, TUPLE<INT, BOOLEAN>>", bytes(serializer, t), show(t), null, groups);
        }
        TypeSerializer<Row> rows = Types.ROW_NAMED(new String[] {"a", "b", "c", "d", "e", "f", "g"}, Types.INT, Types.STRING, Types.LONG, Types.DOUBLE, Types.ROW_NAMED(new String[] {"x", "y"}, Types.LONG, Types.STRING), Types.BOOLEAN, Types.LOCAL_DATE).createSerializer(new SerializerConfigImpl());
        for (int i = 0; i < 30; i++) {
            RowKind kind = RowKind.values()[i % 4];
            Row inner = Row.of(maybe(random.nextLong()), maybe(text(5)));
            Object[] v = {maybe(random.nextInt()), maybe(text(3)), maybe(random.nextLong()), maybe(random.nextDouble()), maybe(inner), maybe(random.nextBoolean()), maybe(LocalDate.ofEpochDay(random.nextInt(40000)))};
            Row row = Row.of(v);
            row.setKind(kind);
            Map<String, Object> groups = fields("a,b", group(Tuple2.of(v[0], v[1])));
            if (v[4] != null) groups.put("e", group(v[4]));
            if (v[2] != null) groups.put("c", group(v[2]));
            if (v[6] != null) groups.put("g", group(v[6]));
            Object e = v[4] == null ? null : fields("x", inner.getField(0), "y", inner.getField(1));
            line("ROW<a INT, b STRING, c LONG, d DOUBLE, e ROW<x LONG, y STRING>, f BOOLEAN, g LOCALDATE>", bytes(rows, row), fields("a", v[0], "b", v[1], "c", v[2], "d", v[3], "e", e, "f", v[5], "g", v[6]), kind.shortString(), groups);
        }
        TypeSerializer<Point> points = TypeInformation.of(Point.class).createSerializer(new SerializerConfigImpl());
        String type = "POJO<zeta LONG, alpha STRING, mid INT, cells ARRAY<INT>, pair TUPLE<LONG, STRING>>";
        for (int i = 0; i < 15; i++) {
            Point p = new Point();
            p.zeta = random.nextLong();
            p.alpha = (String) maybe(text(4));
            p.mid = (Integer) maybe(random.nextInt());
            p.cells = random.nextInt(4) == 0 ? null : new int[] {random.nextInt(), 7}; 
            p.pair = random.nextInt(4) == 0 ? null : Tuple2.of(random.nextLong(), text(2));
            Map<String, Object> groups = fields("zeta", group(p.zeta), "alpha,mid", group(Tuple2.of(p.alpha, p.mid)));
            line(type, bytes(points, p), fields("zeta", p.zeta, "alpha", p.alpha, "mid", p.mid, "cells", show(p.cells), "pair", show(p.pair)), null, groups);
        }
        line(type, bytes(points, null), null, null, null);
    }

    static Object maybe(Object o) {
        return random.nextInt(4) == 0 ? null : o;
    }

    // --- SQL rows ---

    static final String[][] COLUMNS = {
        {"bo", "BOOLEAN"}, {"ti", "TINYINT"}, {"sm", "SMALLINT"}, {"i", "INT"}, {"bi", "BIGINT"}, {"fl", "FLOAT"}, {"do", "DOUBLE"},
        {"ch", "CHAR(3)"}, {"vc", "VARCHAR(20)"}, {"st", "STRING"}, {"by", "BYTES"}, {"d1", "DECIMAL(10, 2)"}, {"d2", "DECIMAL(38, 10)"},
        {"da", "DATE"}, {"tm", "TIME(3)"}, {"t3", "TIMESTAMP(3)"}, {"t6", "TIMESTAMP(6)"}, {"t9", "TIMESTAMP(9)"}, {"l3", "TIMESTAMP_LTZ(3)"}, {"l9", "TIMESTAMP_LTZ(9)"},
        {"iy", "INTERVAL YEAR TO MONTH"}, {"id", "INTERVAL DAY TO SECOND"}, {"ar", "ARRAY<INT>"}, {"as", "ARRAY<STRING>"}, {"ro", "ROW<x BIGINT, y STRING>"},
        {"ma", "MAP<STRING, BIGINT>"}, {"ad", "ARRAY<DECIMAL(20, 1)>"}, {"at", "ARRAY<TIMESTAMP(6)>"}, {"aa", "ARRAY<ARRAY<SMALLINT>>"}, {"mu", "MULTISET<INT>"}};
    static final int FLAT = 22;

    /** The internal value, and as it is to be shown. */
    static Object[] sqlValue(String type) {
        if (random.nextInt(4) == 0) return new Object[] {null, null};
        long millis = random.nextInt(2) == 0 ? 1700000000123L : -62135596800000L + (long) (random.nextDouble() * 300_000_000_000_000L);
        int nano = random.nextInt(1_000_000);
        switch (type) {
            case "BOOLEAN": { boolean v = random.nextBoolean(); return new Object[] {v, v}; }
            case "TINYINT": { byte v = (byte) random.nextInt(); return new Object[] {v, v}; }
            case "SMALLINT": { short v = (short) random.nextInt(); return new Object[] {v, v}; }
            case "INT": case "INTERVAL YEAR TO MONTH": { int v = random.nextInt(); return new Object[] {v, v}; }
            case "BIGINT": case "INTERVAL DAY TO SECOND": { long v = random.nextLong(); return new Object[] {v, v}; }
            case "FLOAT": { float v = random.nextFloat(); return new Object[] {v, v}; }
            case "DOUBLE": { double v = random.nextDouble(); return new Object[] {v, v}; }
            case "CHAR(3)": { String v = "" + (char) (97 + random.nextInt(26)) + "bc"; return new Object[] {StringData.fromString(v), v}; }
            case "VARCHAR(20)": case "STRING": { String v = text(random.nextInt(20)); return new Object[] {StringData.fromString(v), v}; }
            case "BYTES": { byte[] v = new byte[random.nextInt(20)]; random.nextBytes(v); return new Object[] {v, v}; }
            case "DECIMAL(10, 2)": return decimal(BigDecimal.valueOf(random.nextInt(), 2), 10, 2);
            case "DECIMAL(38, 10)": return decimal(new BigDecimal(new BigInteger(random.nextInt(120), random), 10).multiply(BigDecimal.valueOf(random.nextBoolean() ? 1 : -1)), 38, 10);
            case "DECIMAL(20, 1)": return decimal(BigDecimal.valueOf(random.nextLong(), 1), 20, 1);
            case "DATE": { int v = random.nextInt(100000) - 30000; return new Object[] {v, LocalDate.ofEpochDay(v).toString()}; }
            case "TIME(3)": { int v = random.nextInt(86_400_000); return new Object[] {v, seconds(LocalTime.ofNanoOfDay(v * 1_000_000L).toString())}; }
            case "TIMESTAMP(3)": return stamp(millis, 0, false);
            case "TIMESTAMP(6)": return stamp(millis, nano / 1000 * 1000, false);
            case "TIMESTAMP(9)": return stamp(millis, nano, false);
            case "TIMESTAMP_LTZ(3)": return stamp(millis, 0, true);
            case "TIMESTAMP_LTZ(9)": return stamp(millis, nano, true);
            case "ROW<x BIGINT, y STRING>": {
                Object[] x = sqlValue("BIGINT"), y = sqlValue("STRING");
                return new Object[] {GenericRowData.of(x[0], y[0]), fields("x", x[1], "y", y[1])};
            }
            case "MAP<STRING, BIGINT>": case "MULTISET<INT>": {
                Map<Object, Object> map = new LinkedHashMap<>();
                List<Object> shown = new ArrayList<>();
                for (int i = random.nextInt(4); i > 0; i--) {
                    Object[] k = sqlValue(type.startsWith("MAP") ? "STRING" : "INT"), v = sqlValue(type.startsWith("MAP") ? "BIGINT" : "INT");
                    if (k[0] == null || map.containsKey(k[0])) continue;
                    if (v[0] == null && !type.startsWith("MAP")) v = new Object[] {1, 1};
                    map.put(k[0], v[0]);
                    shown.add(fields("key", k[1], "value", v[1]));
                }
                return new Object[] {new GenericMapData(map), shown};
            }
            default: {
                String element = type.substring(6, type.length() - 1);
                Object[] array = new Object[random.nextInt(40) == 0 ? 70 : random.nextInt(5)];
                List<Object> shown = new ArrayList<>();
                for (int i = 0; i < array.length; i++) {
                    Object[] v = sqlValue(element);
                    array[i] = v[0];
                    shown.add(v[1]);
                }
                return new Object[] {new GenericArrayData(array), shown};
            }
        }
    }

    static Object[] decimal(BigDecimal v, int precision, int scale) {
        return new Object[] {DecimalData.fromBigDecimal(v, precision, scale), v.toPlainString()};
    }

    static Object[] stamp(long millis, int nano, boolean zone) {
        LocalDateTime shown = LocalDateTime.ofEpochSecond(Math.floorDiv(millis, 1000L), (int) Math.floorMod(millis, 1000L) * 1_000_000 + nano, java.time.ZoneOffset.UTC);
        return new Object[] {TimestampData.fromEpochMillis(millis, nano), show(shown) + (zone ? "Z" : "")};
    }

    static void sqlRows() throws Exception {
        ClassLoader loader = Vectors.class.getClassLoader();
        int n = COLUMNS.length;
        LogicalType[] types = new LogicalType[n];
        String[] names = new String[n];
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            types[i] = LogicalTypeParser.parse(COLUMNS[i][1], loader);
            names[i] = COLUMNS[i][0];
            texts.add(COLUMNS[i][0] + " " + COLUMNS[i][1]);
        }
        String type = "ROWDATA<" + String.join(", ", texts) + ">";
        RowDataSerializer serializer = new RowDataSerializer(types);
        InternalTypeInfo<RowData> info = InternalTypeInfo.of(RowType.of(types, names));
        List<int[]> keys = new ArrayList<>();
        for (int i = 0; i < FLAT; i++) keys.add(new int[] {i});
        keys.addAll(Arrays.asList(new int[] {3, 9}, new int[] {9, 3}, new int[] {4, 7, 8, 10}, new int[] {12, 17, 16}, new int[] {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}));
        RowDataKeySelector[] selectors = new RowDataKeySelector[keys.size()];
        for (int k = 0; k < selectors.length; k++) selectors[k] = KeySelectorUtil.getRowDataSelector(loader, keys.get(k), info);
        for (int r = 0; r < 60; r++) {
            GenericRowData row = new GenericRowData(RowKind.values()[r % 4], n);
            Map<String, Object> shown = new LinkedHashMap<>();
            for (int i = 0; i < n; i++) {
                Object[] v = sqlValue(COLUMNS[i][1]);
                row.setField(i, v[0]);
                shown.put(names[i], v[1]);
            }
            byte[] bytes = bytes(serializer, row);
            Map<String, Object> groups = new LinkedHashMap<>();
            for (int k = 0; k < selectors.length; k++) {
                List<String> path = new ArrayList<>();
                for (int i : keys.get(k)) path.add(names[i]);
                groups.put(String.join(",", path), group(selectors[k].getKey(serializer.toBinaryRow(row))));
            }
            line(type, bytes, shown, row.getRowKind().shortString(), groups);
        }
        wideRows();
    }

    /** More than 56 columns need a second word of null bits. */
    static void wideRows() throws Exception {
        LogicalType[] types = new LogicalType[70];
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < types.length; i++) {
            types[i] = LogicalTypeParser.parse("INT", Vectors.class.getClassLoader());
            texts.add("c" + i + " INT");
        }
        RowDataSerializer serializer = new RowDataSerializer(types);
        for (int r = 0; r < 3; r++) {
            GenericRowData row = new GenericRowData(types.length);
            Map<String, Object> shown = new LinkedHashMap<>();
            for (int i = 0; i < types.length; i++) {
                row.setField(i, maybe(random.nextInt()));
                shown.put("c" + i, row.getField(i));
            }
            line("ROWDATA<" + String.join(", ", texts) + ">", bytes(serializer, row), shown, "+I", null);
        }
    }

    public static void main(String[] arguments) throws Exception {
        scalars();
        arrays();
        structs();
        sqlRows();
    }
}
