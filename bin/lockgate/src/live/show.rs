//! `lockgate show`: the state of the running gateway, as tables or JSON.

mod counters;
mod groups;
mod overview;
mod placement;
mod tables;

use std::time::Duration;

use api::GatewayClient;
use api::v1::{CacheEntriesRequest, ShowRequest};
use console::output::{Columns, Reader, clear_screen, json_text, print, print_json, print_on};
use console::terminal::Terminal;
use serde::Serialize;
use tonic::{Response, Status};

use super::connection::{self, Form};
use super::endpoint;
use super::{Ask, LiveError, Socket};
use crate::failure::Failure;

/// Columns of tables where standard output is no terminal.
const USUAL_COLUMNS: usize = 100;
/// Show the state of the running gateway
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The part of the gateway to show
    #[arg(value_enum)]
    what: What,
    /// Show only this one: a port, a peer (also for its SAs), an SA's SPI, a policy, a security
    /// group, a neighbour's address, a route's prefix, a drop reason, a virtual network (of
    /// endpoints). Of connections those that a filter names: host, net, port, proto, state, on
    /// (`lockgate connection clear --help`)
    #[arg(value_name = "NAME")]
    name: Vec<String>,
    /// Show this many entries of the flow cache, at most 10000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=MOST_ENTRIES))]
    entries: Option<u32>,
    /// Show only the cache entries of this worker
    #[arg(long, value_name = "NUMBER", requires = "entries")]
    worker: Option<u32>,
    /// Include stale cache entries
    #[arg(long, requires = "entries")]
    stale: bool,
    /// Show all columns, however wide the table gets
    #[arg(long)]
    wide: bool,
    /// Repeat every SECONDS (2) until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    watch: Option<u32>,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Entries of the cache that the daemon shows at a time.
const MOST_ENTRIES: i64 = api::MAX_CACHE_ENTRIES as i64;

impl Args {
    /// `lockgate show status`.
    pub(crate) const fn status(watch: Option<u32>, json: bool) -> Args {
        let what = What::Status;
        Args {
            what,
            name: Vec::new(),
            entries: None,
            worker: None,
            stale: false,
            wide: false,
            watch,
            json,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// The gateway on one screen: ports, peers, rates, drops, warnings
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
    /// Security groups with their rules and counters
    #[value(alias = "groups")]
    Group,
    /// The flow cache
    Cache,
    /// Neighbours
    #[value(alias = "neighbours", alias = "neighbor", alias = "neighbors")]
    Neighbour,
    /// Routes
    #[value(alias = "routes")]
    Route,
    /// Connections that reflect rules let begin, with the totals of their table
    #[value(alias = "connections")]
    Connection,
    /// Endpoints of virtual networks
    #[value(alias = "endpoints")]
    Endpoint,
    /// Network cards, which rules they decide, and why not the others; policies in the order of
    /// lookup, those in front whose packets cards carry
    #[value(alias = "placements", alias = "card", alias = "cards")]
    Placement,
    /// Rates, tiers, drops, ledger, frames, workers
    #[value(alias = "counter")]
    Counters,
    /// Revisions of the configuration
    #[value(alias = "revision")]
    Revisions,
}

/// Asks and prints, again and again if asked to.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    let Some(seconds) = args.watch else {
        return once(args, socket, || {}).map(drop);
    };
    let clear = || {
        if Terminal::stdout().is_terminal() {
            clear_screen();
        }
    };
    loop {
        if once(args, socket, clear)? == Reader::Gone {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(seconds.into()));
    }
}

/// Asks and prints the answer; `before` it what is to be done then.
fn once(args: &Args, socket: &Socket, before: impl FnOnce()) -> Result<Reader, Failure> {
    if args.what == What::Connection && args.entries.is_none() {
        let form = if args.json { Form::Json } else { Form::Table };
        before();
        return connection::show(&args.name.join(" "), form, socket);
    }
    if args.what == What::Endpoint && args.entries.is_none() && args.name.len() < 2 {
        let form = if args.json { Form::Json } else { Form::Table };
        before();
        return endpoint::show(args.name.first().map(String::as_str), form, socket);
    }
    if args.name.len() > 1 {
        return Err(LiveError::ManyNames.into());
    }
    let text = text(args, socket)?;
    before();
    Ok(print_on(&text)?)
}

/// Asks, and returns the answer as it is printed.
fn text(args: &Args, socket: &Socket) -> Result<String, Failure> {
    let show = Show { args, socket };
    let columns = match args.wide {
        true => Columns::All,
        false => Columns::Within(Terminal::stdout().width().unwrap_or(USUAL_COLUMNS)),
    };
    if let Some(limit) = args.entries {
        return show.cache_entries(limit);
    }
    match args.what {
        // Printed page by page, and has no entries of the cache.
        What::Connection => Err(LiveError::NoEntries.into()),
        What::Endpoint if args.name.len() > 1 => Err(LiveError::ManyNames.into()),
        What::Endpoint => Err(LiveError::NoEntries.into()),
        What::Placement => {
            let most = if args.wide { usize::MAX } else { placement::MOST_LINES };
            show.answer(
                async |c, r| api::whole(c.show_placement(r).await?).await,
                |answer| placement::placement(answer, most, columns),
            )
        }
        What::Status => show.overview(),
        What::Port => {
            show.answer(async |c, r| c.show_ports(r).await, |ports| tables::ports(ports, columns))
        }
        What::Peer => show.answer(
            async |c, r| api::whole(c.show_peers(r).await?).await,
            |peers| tables::peers(peers, columns),
        ),
        What::Sa => show.answer(
            async |c, r| api::whole(c.show_security_associations(r).await?).await,
            |sas| tables::security_associations(sas, columns),
        ),
        What::Policy => {
            show.answer(async |c, r| api::whole(c.show_policies(r).await?).await, tables::policies)
        }
        What::Group => show.answer(async |c, r| c.show_groups(r).await, groups::groups),
        What::Cache => show.answer(async |c, r| c.show_cache(r).await, tables::cache),
        What::Neighbour => show.answer(async |c, r| c.show_neighbours(r).await, tables::neighbours),
        What::Route => show.answer(async |c, r| c.show_routes(r).await, tables::routes),
        What::Counters => show.answer(
            async |c, r| c.show_counters(r).await,
            |counters| counters::counters(counters, columns),
        ),
        What::Revisions => show.answer(async |c, r| c.show_revisions(r).await, tables::revisions),
    }
}

/// Lists the revisions, for `rollback --list`.
pub(crate) fn revisions(socket: &Socket, as_json: bool) -> Result<(), Failure> {
    let request = ShowRequest { name: None };
    let listed = Ask::new(socket)?.call(async |client| client.show_revisions(request).await)?;
    match as_json {
        true => print_json(&listed),
        false => print(&tables::revisions(&listed)),
    }?;
    Ok(())
}

/// A question, and the daemon to ask.
struct Show<'a> {
    args: &'a Args,
    socket: &'a Socket,
}

impl Show<'_> {
    fn answer<T: Serialize>(
        &self,
        call: impl AsyncFnOnce(&mut GatewayClient, ShowRequest) -> Result<Response<T>, Status>,
        text: impl Fn(&T) -> String,
    ) -> Result<String, Failure> {
        let request = ShowRequest { name: self.args.name.first().cloned() };
        let answer = Ask::new(self.socket)?.call(async |client| call(client, request).await)?;
        Ok(self.written(&answer, text))
    }

    fn overview(&self) -> Result<String, Failure> {
        let request = ShowRequest::default();
        let answer =
            Ask::new(self.socket)?.call(async |client| client.show_status(request).await)?;
        match self.args.json {
            true => Ok(json_text(&answer)),
            // It has colours, and escapes what it shows.
            false => Ok(overview::overview(&answer, Terminal::stdout())),
        }
    }

    fn cache_entries(&self, limit: u32) -> Result<String, Failure> {
        let Args { what, worker, stale, .. } = *self.args;
        if what != What::Cache {
            return Err(LiveError::NoEntries.into());
        }
        let request = CacheEntriesRequest { limit, worker, stale };
        let mut ask = Ask::new(self.socket)?;
        let answer = ask.call(async |client| client.show_cache_entries(request).await)?;
        Ok(self.written(&answer, tables::cached_flows))
    }

    fn written<T: Serialize>(&self, answer: &T, text: impl Fn(&T) -> String) -> String {
        match self.args.json {
            true => json_text(answer),
            false => text(answer),
        }
    }
}
