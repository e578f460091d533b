package cdr;

import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;

import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.executiongraph.AccessExecutionGraph;
import org.apache.flink.runtime.executiongraph.AccessExecutionVertex;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * One job in a cluster of its own, one TaskManager per parallel subtask, so that records really cross the network.
 * A job that takes checkpoints is stopped after them; a restored one that takes none runs to its end. Prints a line per fact, as "word value".
 */
public final class Run {
    private Run() {}

    public static void main(String[] arguments) {
        main(arguments, Jobs::build);
    }

    /** Ends the process. {@code jobs} is who builds the job that the options ask for. */
    public static void main(String[] arguments, BiConsumer<StreamExecutionEnvironment, Options> jobs) {
        int status = 0;
        try {
            run(Options.read(arguments[0]), jobs);
        } catch (Throwable failure) {
            for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
                System.err.println(cause); // the reason is at the end of a long chain, frames would only hide it
            }
            status = 1;
        }
        System.exit(status); // threads of a cluster may linger, also of one that is closed
    }

    private static void run(Options options, BiConsumer<StreamExecutionEnvironment, Options> jobs) throws Exception {
        Configuration configuration = Configuration.fromMap(options.configuration());
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        env.setParallelism(options.parallelism);
        env.setMaxParallelism(options.maxParallelism);
        jobs.accept(env, options);
        MiniClusterConfiguration size = new MiniClusterConfiguration.Builder()
                .setConfiguration(configuration)
                .setNumTaskManagers(Math.max(options.parallelism, options.sources()))
                .setNumSlotsPerTaskManager(1)
                .build();
        try (MiniCluster cluster = new MiniCluster(size)) {
            cluster.start();
            JobGraph graph = env.getStreamGraph().getJobGraph();
            cluster.submitJob(graph).get();
            if (options.onlyRestored) {
                restore(cluster, graph.getJobID(), options);
            } else if (options.restores() && options.checkpoints == 0) {
                finish(cluster, graph.getJobID(), options);
            } else {
                checkpoint(cluster, graph.getJobID(), options);
            }
        }
    }

    /** Prints how long it took from the first subtask that began to restore to the last one that ran. */
    private static void restore(MiniCluster cluster, JobID job, Options options) throws Exception {
        long deadline = System.currentTimeMillis() + options.limitMillis;
        AccessExecutionGraph graph = cluster.getExecutionGraph(job).get();
        while (!running(graph)) {
            refuse(cluster, job, deadline);
            Thread.sleep(20);
            graph = cluster.getExecutionGraph(job).get();
        }
        long begun = Long.MAX_VALUE;
        long ended = 0;
        for (AccessExecutionVertex subtask : graph.getAllExecutionVertices()) {
            begun = Math.min(begun, subtask.getStateTimestamp(ExecutionState.INITIALIZING));
            ended = Math.max(ended, subtask.getStateTimestamp(ExecutionState.RUNNING));
        }
        System.out.println("restored " + (ended - begun));
        end(cluster, job);
    }

    private static void checkpoint(MiniCluster cluster, JobID job, Options options) throws Exception {
        long deadline = System.currentTimeMillis() + options.limitMillis;
        while (!running(cluster.getExecutionGraph(job).get())) {
            refuse(cluster, job, deadline);
            Thread.sleep(50);
        }
        for (int n = 0; n < options.checkpoints; n++) {
            Thread.sleep(options.fillMillis);
            while (Seen.records() < options.afterRecords) {
                refuse(cluster, job, deadline);
                Thread.sleep(50);
            }
            String path = cluster.triggerCheckpoint(job).get(options.limitMillis, TimeUnit.MILLISECONDS);
            System.out.println("checkpoint " + path);
        }
        end(cluster, job);
    }

    private static void end(MiniCluster cluster, JobID job) throws Exception {
        cluster.cancelJob(job).get();
        while (!cluster.getJobStatus(job).get().isGloballyTerminalState()) {
            Thread.sleep(20);
        }
    }

    private static void finish(MiniCluster cluster, JobID job, Options options) throws Exception {
        long begun = System.currentTimeMillis();
        JobStatus status = cluster.getJobStatus(job).get();
        while (status != JobStatus.FINISHED) {
            refuse(cluster, job, begun + options.limitMillis);
            Thread.sleep(20);
            status = cluster.getJobStatus(job).get();
        }
        System.out.println("finished " + (System.currentTimeMillis() - begun));
    }

    /** A job that is still being set up has no subtasks yet, and is not running. Some may be at their end already. */
    private static boolean running(AccessExecutionGraph graph) {
        int subtasks = 0;
        for (AccessExecutionVertex subtask : graph.getAllExecutionVertices()) {
            ExecutionState state = subtask.getExecutionState();
            if (state != ExecutionState.RUNNING && state != ExecutionState.FINISHED) {
                return false;
            }
            subtasks++;
        }
        return subtasks > 0;
    }

    private static void refuse(MiniCluster cluster, JobID job, long deadline) throws Exception {
        AccessExecutionGraph graph = cluster.getExecutionGraph(job).get();
        if (graph.getFailureInfo() != null) {
            throw new IllegalStateException("the job failed",
                    graph.getFailureInfo().getException().deserializeError(Run.class.getClassLoader()));
        }
        if (graph.getState().isGloballyTerminalState() && graph.getState() != JobStatus.FINISHED) {
            throw new IllegalStateException("the job is " + graph.getState());
        }
        if (System.currentTimeMillis() > deadline) {
            throw new IllegalStateException("the job is still " + graph.getState() + " at its time limit");
        }
    }
}
