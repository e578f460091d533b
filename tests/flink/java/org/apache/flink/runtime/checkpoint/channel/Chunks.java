package org.apache.flink.runtime.checkpoint.channel;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.apache.flink.core.fs.FSDataInputStream;
import org.apache.flink.runtime.state.AbstractChannelStateHandle;

/** In this package because only it may use Flink's reader of channel-state files. */
public final class Chunks {
    private Chunks() {}

    /** The buffers that a handle names, in the order in which they were in flight. */
    public static List<byte[]> read(AbstractChannelStateHandle<?> handle) throws IOException {
        ChannelStateSerializer format = new ChannelStateSerializerImpl();
        List<Long> offsets = new ArrayList<>(handle.getOffsets());
        Collections.sort(offsets);
        List<byte[]> chunks = new ArrayList<>();
        try (FSDataInputStream stream = handle.getDelegate().openInputStream()) {
            format.readHeader(stream);
            for (long offset : offsets) {
                stream.seek(offset);
                byte[] chunk = new byte[format.readLength(stream)];
                ChannelStateByteBuffer buffer = ChannelStateByteBuffer.wrap(chunk);
                for (int left = chunk.length; left > 0; ) {
                    left -= format.readData(stream, buffer, left);
                }
                chunks.add(chunk);
            }
        }
        return chunks;
    }
}
