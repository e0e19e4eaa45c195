//! `lockgate show`: the state of the running gateway, as tables or JSON.

mod tables;

use api::GatewayClient;
use api::v1::{CacheEntriesRequest, ShowRequest};
use serde::Serialize;
use tonic::{Response, Status};

use super::{Ask, LiveError, Socket};
use crate::failure::Failure;
use crate::output::{print, print_json};

/// Show what the running gateway does
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The part of the gateway to show
    #[arg(value_enum)]
    what: What,
    /// Only the one of this name: a port, a peer (also for its SAs), a policy, a neighbour's
    /// address, a route's prefix, a drop reason
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Show this many entries of the flow cache, at most 10000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=MOST_ENTRIES))]
    entries: Option<u32>,
    /// Show only the cache entries of this worker
    #[arg(long, value_name = "NUMBER", requires = "entries")]
    worker: Option<u32>,
    /// Include stale cache entries
    #[arg(long, requires = "entries")]
    stale: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Entries of the cache that the daemon shows at a time.
const MOST_ENTRIES: i64 = api::MAX_CACHE_ENTRIES as i64;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Version, revision, guard
    Status,
    /// Ports with their netdevs, addresses, queues and ledgers
    #[value(alias = "ports")]
    Port,
    /// Peers with their tunnels
    #[value(alias = "peers")]
    Peer,
    /// Security associations
    #[value(alias = "sas")]
    Sa,
    /// Policies in order of precedence
    #[value(alias = "policies")]
    Policy,
    /// Security groups: not in this version
    #[value(alias = "groups", hide = true)]
    Group,
    /// The flow cache
    Cache,
    /// Neighbours
    #[value(alias = "neighbours", alias = "neighbor", alias = "neighbors")]
    Neighbour,
    /// Routes
    #[value(alias = "routes")]
    Route,
    /// Connections: not in this version
    #[value(alias = "connections", hide = true)]
    Connection,
    /// Rules placed on devices: not in this version
    #[value(hide = true)]
    Placement,
    /// Tiers, drops, ledger, frames, workers
    #[value(alias = "counter")]
    Counters,
    /// Revisions of the configuration
    #[value(alias = "revision")]
    Revisions,
}

/// Asks and prints.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    let not_yet = |what| Err(LiveError::NotYet { what }.into());
    let show = Show { args, socket };
    if let Some(limit) = args.entries {
        return show.cache_entries(limit);
    }
    match args.what {
        What::Group => not_yet("group"),
        What::Connection => not_yet("connection"),
        What::Placement => not_yet("placement"),
        What::Status => show.print(async |c, r| c.show_status(r).await, tables::status),
        What::Port => show.print(async |c, r| c.show_ports(r).await, tables::ports),
        What::Peer => show.print(async |c, r| c.show_peers(r).await, tables::peers),
        What::Sa => show.print(
            async |c, r| c.show_security_associations(r).await,
            tables::security_associations,
        ),
        What::Policy => show.print(async |c, r| c.show_policies(r).await, tables::policies),
        What::Cache => show.print(async |c, r| c.show_cache(r).await, tables::cache),
        What::Neighbour => show.print(async |c, r| c.show_neighbours(r).await, tables::neighbours),
        What::Route => show.print(async |c, r| c.show_routes(r).await, tables::routes),
        What::Counters => show.print(async |c, r| c.show_counters(r).await, tables::counters),
        What::Revisions => show.print(async |c, r| c.show_revisions(r).await, tables::revisions),
    }
}

/// Lists the revisions, for `rollback --list`.
pub(crate) fn revisions(socket: &Socket, as_json: bool) -> Result<(), Failure> {
    let request = ShowRequest { name: None };
    let listed = Ask::new(socket)?.call(async |client| client.show_revisions(request).await)?;
    match as_json {
        true => print_json(&listed),
        false => print(&tables::revisions(&listed)),
    }
}

/// What is asked, and of whom.
struct Show<'a> {
    args: &'a Args,
    socket: &'a Socket,
}

impl Show<'_> {
    fn print<T: Serialize>(
        &self,
        call: impl AsyncFnOnce(&mut GatewayClient, ShowRequest) -> Result<Response<T>, Status>,
        text: fn(&T) -> String,
    ) -> Result<(), Failure> {
        let request = ShowRequest { name: self.args.name.clone() };
        let answer = Ask::new(self.socket)?.call(async |client| call(client, request).await)?;
        self.tell(&answer, text)
    }

    fn cache_entries(&self, limit: u32) -> Result<(), Failure> {
        let Args { what, worker, stale, .. } = *self.args;
        if what != What::Cache {
            return Err(LiveError::NoEntries.into());
        }
        let request = CacheEntriesRequest { limit, worker, stale };
        let mut ask = Ask::new(self.socket)?;
        let answer = ask.call(async |client| client.show_cache_entries(request).await)?;
        self.tell(&answer, tables::cached_flows)
    }

    fn tell<T: Serialize>(&self, answer: &T, text: fn(&T) -> String) -> Result<(), Failure> {
        match self.args.json {
            true => print_json(answer),
            false => print(&text(answer)),
        }
    }
}
