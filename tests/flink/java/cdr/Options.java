package cdr;

import java.io.File;
import java.io.Serializable;
import java.util.HashMap;
import java.util.Map;

import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;

/** What a run is asked to do. The Python side writes it as JSON; every field is explained there (harness/job.py). */
public final class Options implements Serializable {
    public String job;
    public int parallelism;
    /** Of the generators, where it is another one; else 0. */
    public int sources;
    /** Of job p. */
    public String partitioner;
    public int maxParallelism;
    public int generators;
    public long records;
    public long secondRecords;
    public int ending;
    public long endingRecords;
    public int keys;
    public int shortest;
    public int longest;
    public boolean timestamps;
    public long pauseMicros;
    public long fillMillis;
    public int checkpoints;
    public long afterRecords;
    public long limitMillis;
    /** Whether a restored job is ended as soon as all of it runs. */
    public boolean onlyRestored;
    /** A folder for what the job has seen; null when nobody wants to know. */
    public String seen;
    public HashMap<String, String> flink = new HashMap<>();

    static Options read(String file) throws Exception {
        return new ObjectMapper().readValue(new File(file), Options.class);
    }

    int sources() {
        return sources > 0 ? sources : parallelism;
    }

    boolean restores() {
        return flink.containsKey("execution.state-recovery.path");
    }

    Map<String, String> configuration() {
        Map<String, String> all = new HashMap<>();
        for (String host : new String[] {"rest.bind-address", "rest.address", "jobmanager.bind-host"}) {
            all.put(host, "127.0.0.1");
        }
        for (String host : new String[] {"taskmanager.bind-host", "taskmanager.host", "jobmanager.rpc.address"}) {
            all.put(host, "127.0.0.1");
        }
        all.put("rest.bind-port", "0");
        all.put("rest.port", "0");
        all.put("restart-strategy.type", "none");
        all.putAll(flink);
        return all;
    }
}
