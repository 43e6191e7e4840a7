import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.opensearch.analysis.common.CommonAnalysisPlugin;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.http.HttpServerTransport;
import org.opensearch.index.mapper.MapperExtrasPlugin;
import org.opensearch.index.reindex.ReindexPlugin;
import org.opensearch.ingest.common.IngestCommonPlugin;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.painless.PainlessPlugin;
import org.opensearch.transport.Netty4Plugin;

/** One node of OpenSearch in a folder; its address goes to the file "address" there once it answers. */
public final class Launcher extends Node {
    private Launcher(Environment environment) {
        super(environment, List.of(Netty4Plugin.class, CommonAnalysisPlugin.class, PainlessPlugin.class,
            MapperExtrasPlugin.class, ReindexPlugin.class, IngestCommonPlugin.class), false);
    }

    public static void main(String[] arguments) throws Exception {
        Path home = Path.of(arguments[0]);
        Settings settings = Settings.builder()
            .put("path.home", home.toString())
            .put("path.data", home.resolve("data").toString())
            .put("path.logs", home.resolve("logs").toString())
            .put("cluster.name", "cmsspark-tests")
            .put("node.name", "tests")
            .put("discovery.type", "single-node")
            .put("network.host", "127.0.0.1")
            .put("http.port", "0")
            .put("transport.port", "0")
            .put("http.type", "netty4")
            .put("transport.type", "netty4")
            .put("node.store.allow_mmap", false)
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            // A node of tests holds small indices: one shard, no copies, unless a test says so.
            .put("action.auto_create_index", true)
            .build();
        Launcher node = new Launcher(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "tests"));
        CountDownLatch end = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(end::countDown));
        node.start();
        var address = node.injector().getInstance(HttpServerTransport.class).boundAddress().publishAddress();
        Path aside = home.resolve("address.part");
        Files.writeString(aside, address.getAddress() + ":" + address.getPort());
        Files.move(aside, home.resolve("address"), StandardCopyOption.ATOMIC_MOVE);
        end.await();
    }
}
