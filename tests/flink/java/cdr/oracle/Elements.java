package cdr.oracle;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.zip.CRC32;

import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.streamrecord.LatencyMarker;
import org.apache.flink.streaming.runtime.streamrecord.RecordAttributes;
import org.apache.flink.streaming.runtime.streamrecord.StreamElement;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.runtime.watermarkstatus.WatermarkStatus;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.binary.BinaryRowData;
import org.apache.flink.table.data.writer.BinaryRowWriter;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.VarCharType;

/** Elements of one record type, as the words and numbers of a line. Records are (key, generator, sequence, payload). */
final class Elements {
    private static final int KEY_GROUPS = 128;
    private final String record;

    Elements(String record) {
        this.record = record;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    TypeSerializer<Object> serializer() {
        switch (record) {
            case "TUPLE<LONG, INT, LONG, STRING>":
                return (TypeSerializer) tuple(Types.STRING);
            case "TUPLE<LONG, INT, LONG, BYTES>":
                return (TypeSerializer) tuple(PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);
            case "ROWDATA<k BIGINT, gen INT, seq BIGINT, payload STRING>":
                return (TypeSerializer) new RowDataSerializer(
                        new BigIntType(), new IntType(), new BigIntType(), new VarCharType(VarCharType.MAX_LENGTH));
            default:
                throw new IllegalArgumentException("the oracle does not know records of " + record);
        }
    }

    private static TypeSerializer<?> tuple(TypeInformation<?> payload) {
        return Types.TUPLE(Types.LONG, Types.INT, Types.LONG, payload).createSerializer(new SerializerConfigImpl());
    }

    Map<String, Object> describe(StreamElement element) {
        if (element instanceof StreamRecord) {
            return record((StreamRecord<?>) element);
        }
        if (element instanceof Watermark) {
            return Lines.object("kind", "watermark", "ts", ((Watermark) element).getTimestamp());
        }
        if (element instanceof WatermarkStatus) {
            return Lines.object("kind", "watermark_status", "status", ((WatermarkStatus) element).getStatus());
        }
        if (element instanceof LatencyMarker) {
            LatencyMarker marker = (LatencyMarker) element;
            return Lines.object("kind", "latency_marker", "marked_time", marker.getMarkedTime(),
                    "operator_id", marker.getOperatorId().toHexString(), "subtask", marker.getSubtaskIndex());
        }
        return Lines.object("kind", element instanceof RecordAttributes ? "record_attributes" : "internal_watermark");
    }

    private static Map<String, Object> record(StreamRecord<?> record) {
        Map<String, Object> line = Lines.object("kind", record.hasTimestamp() ? "record_ts" : "record");
        if (record.hasTimestamp()) {
            line.put("ts", record.getTimestamp());
        }
        Object value = record.getValue();
        if (value instanceof Tuple4) {
            Tuple4<?, ?, ?, ?> tuple = (Tuple4<?, ?, ?, ?>) value;
            fields(line, (Long) tuple.f0, (Integer) tuple.f1, (Long) tuple.f2, tuple.f3 instanceof String
                    ? ((String) tuple.f3).getBytes(StandardCharsets.UTF_8)
                    : (byte[]) tuple.f3);
        } else {
            RowData row = (RowData) value;
            fields(line, row.getLong(0), row.getInt(1), row.getLong(2), row.getString(3).toBytes());
            line.put("key_group128_row", KeyGroupRangeAssignment.assignToKeyGroup(key(row.getLong(0)), KEY_GROUPS));
            line.put("row_kind", row.getRowKind().shortString());
        }
        return line;
    }

    private static void fields(Map<String, Object> line, Long key, int generator, long sequence, byte[] payload) {
        CRC32 sum = new CRC32();
        sum.update(payload);
        line.put("key", key);
        line.put("key_group128_long", KeyGroupRangeAssignment.assignToKeyGroup(key, KEY_GROUPS));
        line.put("gen", generator);
        line.put("seq", sequence);
        line.put("payload_len", payload.length);
        line.put("payload_crc32", sum.getValue());
    }

    /** The key of SQL's GROUP BY k is a row of its own. */
    private static BinaryRowData key(long key) {
        BinaryRowData row = new BinaryRowData(1);
        BinaryRowWriter writer = new BinaryRowWriter(row);
        writer.writeLong(0, key);
        writer.complete();
        return row;
    }
}
