package cdr.oracle;

import java.io.Closeable;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.zip.GZIPOutputStream;

import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;

/** A gzipped file of JSON objects, one a line. */
final class Lines implements Closeable {
    private static final ObjectMapper JSON = new ObjectMapper();
    private final Writer file;

    Lines(String path) throws IOException {
        file = new OutputStreamWriter(
                new GZIPOutputStream(Files.newOutputStream(Path.of(path))), StandardCharsets.UTF_8);
    }

    /** A line from names and values in turn. */
    void add(Object... namesAndValues) throws IOException {
        add(object(namesAndValues));
    }

    void add(Map<String, Object> object) throws IOException {
        file.write(JSON.writeValueAsString(object));
        file.write('\n');
    }

    static Map<String, Object> object(Object... namesAndValues) {
        Map<String, Object> object = new LinkedHashMap<>();
        for (int at = 0; at < namesAndValues.length; at += 2) {
            object.put((String) namesAndValues[at], namesAndValues[at + 1]);
        }
        return object;
    }

    @Override
    public void close() throws IOException {
        file.close();
    }
}
