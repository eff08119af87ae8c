//! Three primaries on the loopback interface.

use std::time::Duration;

use idemkit_servers::Local;

use crate::support::{connect, own_with_port};

/// The slots that a cluster has.
const SLOTS: u32 = 16_384;

/// A cluster of a test's own.
pub(crate) struct Cluster {
    nodes: Vec<Local>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let nodes: Vec<Local> = (0..3)
            .map(|_| {
                // By default the bus has the port plus 10,000, which may be none.
                // And a node that stalls for seconds has not failed.
                let args = |bus: &str| {
                    let args = ["--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "30000"];
                    args.map(str::to_owned).to_vec()
                };
                own_with_port(args).0
            })
            .collect();
        let cluster = Self { nodes };
        cluster.join().await;
        cluster
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Local::url).collect()
    }

    async fn join(&self) {
        let count = u32::try_from(self.nodes.len()).unwrap();
        for (at, node) in (0..).zip(&self.nodes) {
            let mut connection = connect(&node.url()).await;
            let (from, to) = (SLOTS * at / count, SLOTS * (at + 1) / count - 1);
            let mut assign = redis::cmd("CLUSTER");
            assign.arg("ADDSLOTSRANGE").arg(from).arg(to).exec_async(&mut connection).await.unwrap();
            // Of nodes with the same epoch two could own a slot.
            redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(at + 1).exec_async(&mut connection).await.unwrap();
        }
        let mut first = connect(&self.nodes[0].url()).await;
        for node in &self.nodes[1..] {
            let info: String = redis::cmd("CONFIG")
                .arg("GET")
                .arg("cluster-port")
                .query_async::<Vec<String>>(&mut connect(&node.url()).await)
                .await
                .unwrap()
                .swap_remove(1);
            let mut meet = redis::cmd("CLUSTER");
            meet.arg("MEET").arg("127.0.0.1").arg(node.port()).arg(info).exec_async(&mut first).await.unwrap();
        }
        for node in &self.nodes {
            let mut connection = connect(&node.url()).await;
            for tries in 0.. {
                let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(&mut connection).await.unwrap();
                if info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3") {
                    break;
                }
                assert!(tries < 900, "{info}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
