//! One connection per request: a full handshake, the smallest file, and the end.

use std::sync::Arc;

use squall_yard::error::Result;
use tokio::task::JoinSet;

use super::client::{Client, Tally};
use super::files::File;

/// Connections made or used at a time.
pub(super) const AT_A_TIME: usize = 10;

/// Starts making connections.
pub(super) fn start(client: &Arc<Client>, file: &File, tally: &Arc<Tally>) -> JoinSet<Result<()>> {
    let mut tasks = JoinSet::new();
    for _ in 0..AT_A_TIME {
        tasks.spawn(repeat(Arc::clone(client), file.clone(), Arc::clone(tally)));
    }
    tasks
}

async fn repeat(client: Arc<Client>, file: File, tally: Arc<Tally>) -> Result<()> {
    loop {
        let mut connection = client.connect().await?;
        let request = connection.request(&file)?;
        connection.get(request, &file, &tally).await?;
    }
}
