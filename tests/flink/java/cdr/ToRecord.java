package cdr;

import java.util.HashSet;
import java.util.Set;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.java.tuple.Tuple4;

/** A number becomes a record. Writes down, per generator, the first sequence number it was given. */
final class ToRecord<P> extends RichMapFunction<Long, Tuple4<Long, Integer, Long, P>> {
    private final Options options;
    private final int first;
    private final long records;
    private final Class<P> payload;
    private final Seen seen;
    private transient Set<Integer> begun;

    ToRecord(Options options, String uid, int first, long records, Class<P> payload) {
        this.options = options;
        this.first = first;
        this.records = records;
        this.payload = payload;
        this.seen = new Seen("first-" + uid, options, false);
    }

    @Override
    public void open(OpenContext context) throws Exception {
        begun = new HashSet<>();
        seen.open(getRuntimeContext());
    }

    @Override
    @SuppressWarnings("unchecked")
    public Tuple4<Long, Integer, Long, P> map(Long number) {
        int generator = first + (int) (number / records);
        long sequence = number % records;
        if (begun.add(generator)) {
            seen.line(generator + "," + sequence);
        }
        P content = (P) Records.payload(payload, generator, sequence, options);
        return Tuple4.of(Records.key(generator, sequence, options.keys), generator, sequence, content);
    }

    @Override
    public void close() {
        seen.close();
    }
}
