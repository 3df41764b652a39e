//! The same file over and over: as many requests in flight as the load says, on keep-alive
//! connections, each followed by the next.

use std::sync::Arc;

use squall_yard::error::{Failure, Result};
use tokio::task::JoinSet;

use super::client::{Client, Connection, Tally};
use super::files::File;
use super::protocol::Shape;

/// Opens the connections of a load and starts its requests on all of them.
///
/// # Errors
/// There is no connection.
pub(super) async fn start(
    client: &Client,
    shape: Shape,
    file: &File,
    tally: &Arc<Tally>,
) -> Result<JoinSet<Result<()>>> {
    let mut handles = Vec::with_capacity(shape.in_flight());
    for _ in 0..shape.connections {
        handles.extend(client.connect().await?.split(shape.streams));
    }
    if handles.len() != shape.in_flight() {
        return Err(Failure::new("a connection takes fewer requests at a time"));
    }
    let mut tasks = JoinSet::new();
    for handle in handles {
        tasks.spawn(repeat(handle, file.clone(), Arc::clone(tally)));
    }
    Ok(tasks)
}

async fn repeat(mut connection: Connection, file: File, tally: Arc<Tally>) -> Result<()> {
    let request = connection.request(&file)?;
    loop {
        connection.get(request.clone(), &file, &tally).await?;
    }
}
