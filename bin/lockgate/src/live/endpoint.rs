//! `lockgate endpoint put|del|import|export|watch` and `lockgate show endpoint`: endpoints of
//! virtual networks. There may be millions: they are sent and printed as they come.

mod lines;
mod watch;

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use api::v1::{self, endpoint_change::Change};
use clap::{Subcommand, ValueEnum};
use console::output::{Reader, complain, counted, json_line, print, print_json, print_on};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::connection::Form;
use super::{AnswerError, Ask, LiveError, Socket};
use crate::failure::{Failure, Usage};
use lines::{CSV_HEADER, csv_line};

/// Changes of a batch.
const BATCH: usize = 4096;
/// Batches that wait to be sent.
const BATCHES_WAITING: usize = 8;
/// Refused changes that are shown.
const MOST_SHOWN: usize = 20;

/// Put, delete and watch endpoints of virtual networks
///
/// An endpoint says which host a tenant's address is behind. A command that changes endpoints ends
/// when the change is durable. Of two changes of an endpoint the one with the higher revision
/// counts, in whatever order they come; without --revision a change gets the next one.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Put(PutArgs),
    Del(DelArgs),
    Import(ImportArgs),
    Export(ExportArgs),
    Watch(watch::Args),
}

/// Put an endpoint, in the place of the one with its address
#[derive(clap::Args)]
struct PutArgs {
    /// Number of the virtual network
    vni: u32,
    /// The tenant's address
    address: String,
    /// Address of the host that it is behind
    #[arg(long, value_name = "ADDRESS")]
    host: String,
    /// MAC address of the tenant
    #[arg(long)]
    mac: String,
    /// MAC address of the host [default: as its neighbour entry says]
    #[arg(long, value_name = "MAC")]
    host_mac: Option<String>,
    /// Revision of the change [default: the next one]
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    revision: u64,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Delete an endpoint
#[derive(clap::Args)]
struct DelArgs {
    /// Number of the virtual network
    vni: u32,
    /// The tenant's address
    address: String,
    /// Revision of the change [default: the next one]
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    revision: u64,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Form of a file of endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FileForm {
    /// Lines of values behind a line of names
    Csv,
    /// The form that `lockgate show endpoint --json` prints
    Json,
}

const FORMS: &str = "\
CSV begins with the names of its columns, of which host_mac and revision may be missing:
  vni,address,host,host_mac,mac,revision
  7,10.0.0.2,192.0.2.12,,02:07:00:00:00:02,
JSON is {\"endpoints\": [{\"vni\": 7, \"address\": …}, …]}, as `endpoint export` writes it.";

/// Put all endpoints of a file
///
/// Endpoints that are refused are named, and the others put. Ends with 1 if any was.
#[derive(clap::Args)]
#[command(after_help = FORMS)]
struct ImportArgs {
    /// The file; `-` reads standard input
    file: PathBuf,
    /// Form of the file [default: by its name, else CSV]
    #[arg(long)]
    form: Option<FileForm>,
    /// End when the endpoints are applied, before they are durable
    #[arg(long)]
    applied: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

/// Write all endpoints to a file
#[derive(clap::Args)]
#[command(after_help = FORMS)]
struct ExportArgs {
    /// The file, which is replaced when all is written; `-` or none writes standard output
    file: Option<PathBuf>,
    /// Only those of this virtual network
    #[arg(long, value_name = "NUMBER")]
    vni: Option<u32>,
    /// Form of the file [default: by its name, else CSV]
    #[arg(long)]
    form: Option<FileForm>,
}

/// Runs the subcommand and prints its result.
pub(crate) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    match &args.what {
        What::Put(args) => {
            let PutArgs { vni, address, host, mac, host_mac, revision, json } = args;
            let change = Change::Put(v1::Endpoint {
                vni: *vni,
                address: address.clone(),
                host: host.clone(),
                host_mac: host_mac.clone(),
                mac: mac.clone(),
                revision: *revision,
            });
            let form = if *json { Form::Json } else { Form::Table };
            send((std::iter::once(Ok(change)), Until::Durable), form, socket)
        }
        What::Del(DelArgs { vni, address, revision, json }) => {
            let (vni, address, revision) = (*vni, address.clone(), *revision);
            let change = Change::Delete(v1::EndpointName { vni, address, revision });
            let form = if *json { Form::Json } else { Form::Table };
            send((std::iter::once(Ok(change)), Until::Durable), form, socket)
        }
        What::Import(args) => import(args, socket),
        What::Export(args) => export(args, socket),
        What::Watch(args) => watch::run(args, socket),
    }
}

/// The answer that a command waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Until {
    Applied,
    Durable,
}

fn import(args: &ImportArgs, socket: &Socket) -> Result<(), Failure> {
    let until = if args.applied { Until::Applied } else { Until::Durable };
    let form = if args.json { Form::Json } else { Form::Table };
    let name = args.file.display().to_string();
    let failed = |error: std::io::Error| Usage::BadEndpointFile {
        place: name.clone(),
        problem: error.to_string(),
    };
    let reader: Box<dyn Read + Send> = match args.file == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(&args.file).map_err(failed)?),
    };
    match form_of(args.form, Some(&args.file)) {
        FileForm::Csv => send((lines::csv(reader, &name)?, until), form, socket),
        FileForm::Json => {
            let read: Listed =
                serde_json::from_reader(std::io::BufReader::new(reader)).map_err(|error| {
                    Usage::BadEndpointFile { place: name.clone(), problem: error.to_string() }
                })?;
            let puts = read.endpoints.into_iter().map(|line| Ok(Change::Put(line.into())));
            send((puts, until), form, socket)
        }
    }
}

fn form_of(named: Option<FileForm>, file: Option<&Path>) -> FileForm {
    let by_name = file.and_then(Path::extension).filter(|extension| *extension == "json");
    named.unwrap_or(if by_name.is_some() { FileForm::Json } else { FileForm::Csv })
}

/// A file of endpoints in JSON.
#[derive(serde::Deserialize)]
struct Listed {
    endpoints: Vec<lines::Line>,
}

/// The outcome of all changes.
#[derive(Default, Serialize)]
struct Done {
    applied: u64,
    repeated: u64,
    stale: u64,
    refused: u64,
    durable: bool,
    /// Time until the last change was applied, and until it was durable.
    applied_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    durable_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_durable: Option<String>,
    /// The first of those that were refused.
    messages: Vec<String>,
}

type Changes<'c> = dyn Iterator<Item = Result<Change, Failure>> + Send + 'c;

/// Sends changes, and tells what became of them.
fn send(
    (changes, until): (impl Iterator<Item = Result<Change, Failure>> + Send + 'static, Until),
    form: Form,
    socket: &Socket,
) -> Result<(), Failure> {
    let ask = Ask::new(socket)?;
    let mut client = ask.client.clone();
    let began = Instant::now();
    let (to, batches) = mpsc::channel(BATCHES_WAITING);
    let sender = std::thread::spawn(move || send_batches(Box::new(changes), &to));
    let answered = ask.wait(async {
        let stream = ReceiverStream::new(batches);
        let answers = client.change_endpoints(stream).await.map_err(AnswerError)?;
        receive(answers.into_inner(), (began, until)).await
    });
    // If the daemon went away the thread ends, because its channel is closed.
    let sent = sender.join().unwrap_or(Ok(()));
    let done = answered?;
    sent?;
    match form {
        Form::Json => print_json(&done)?,
        Form::Table => tell(&done)?,
    }
    let is_good = done.refused == 0 && done.not_durable.is_none();
    if is_good { Ok(()) } else { Err(Failure::Bad) }
}

fn send_batches(
    changes: Box<Changes<'_>>,
    to: &mpsc::Sender<v1::EndpointChanges>,
) -> Result<(), Failure> {
    let mut batch = Vec::with_capacity(BATCH);
    for change in changes {
        batch.push(v1::EndpointChange { change: Some(change?) });
        if batch.len() == BATCH {
            let changes = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
            if to.blocking_send(v1::EndpointChanges { changes }).is_err() {
                return Ok(());
            }
        }
    }
    if !batch.is_empty() {
        // Nobody to take it: the daemon's answer says why.
        let _ = to.blocking_send(v1::EndpointChanges { changes: batch });
    }
    Ok(())
}

async fn receive(
    mut answers: Streaming<v1::EndpointsChanged>,
    (began, until): (Instant, Until),
) -> Result<Done, Failure> {
    let mut done = Done { durable: true, ..Done::default() };
    let since = || began.elapsed().as_micros().try_into().unwrap_or(u64::MAX);
    while let Some(told) = answers.message().await.map_err(AnswerError)? {
        if told.stage == "durable" {
            done.durable_us = Some(since());
            done.not_durable = done.not_durable.or(told.not_durable);
            continue;
        }
        done.applied_us = since();
        done.applied += told.applied;
        done.repeated += told.repeated;
        done.stale += told.stale;
        done.refused += told.refused.len() as u64;
        for v1::RefusedEndpoint { place, message } in told.refused {
            if done.messages.len() < MOST_SHOWN {
                let number = told.batch * BATCH as u64 + u64::from(place) + 1;
                done.messages.push(format!("change {number}: {message}"));
            }
        }
    }
    done.durable = until == Until::Durable && done.not_durable.is_none();
    Ok(done)
}

fn tell(done: &Done) -> Result<(), Failure> {
    for message in &done.messages {
        complain(&format!("lockgate: {message}\n"));
    }
    if done.refused > done.messages.len() as u64 {
        let more = done.refused - done.messages.len() as u64;
        complain(&format!("lockgate: and {more} more\n"));
    }
    if let Some(reason) = &done.not_durable {
        complain(&format!("lockgate: applied, but not durable: {reason}\n"));
    }
    let mut parts = vec![counted(done.applied, "change")];
    for (count, what) in [
        (done.repeated, "made before"),
        (done.stale, "out of date, without effect"),
        (done.refused, "refused"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let milliseconds = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
    let applied = milliseconds(done.applied_us);
    let durable = done.durable_us.filter(|_| done.durable).map(milliseconds);
    let durable = durable.map_or_else(String::new, |time| format!(", durable after {time}"));
    print(&format!("{}; applied after {applied}{durable}\n", parts.join(", ")))?;
    Ok(())
}

fn export(args: &ExportArgs, socket: &Socket) -> Result<(), Failure> {
    let form = form_of(args.form, args.file.as_deref());
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    let mut ask = Ask::new(socket)?;
    let request = v1::EndpointsRequest { vni: args.vni };
    let mut pages = ask.call(async |client| client.show_endpoints(request).await)?;
    let Some(file) = file else {
        return ask.wait(print_all(&mut pages, Shape::File(form))).map(drop);
    };
    let failed = |error: std::io::Error| Usage::BadEndpointFile {
        place: file.display().to_string(),
        problem: error.to_string(),
    };
    let beside = file.with_extension("part");
    let mut out = BufWriter::new(File::create(&beside).map_err(failed)?);
    let mut printer = Printer::new(Shape::File(form));
    let written = ask.wait(async {
        while let Some(page) = pages.message().await.map_err(AnswerError)? {
            out.write_all(printer.page(&page).as_bytes()).map_err(failed)?;
            if page.sums.is_some() {
                return Ok(());
            }
        }
        Err(Failure::from(LiveError::StreamEnded))
    });
    let finish = || -> std::io::Result<()> {
        out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
        std::fs::rename(&beside, file)
    };
    let finished = written.and_then(|()| finish().map_err(|error| failed(error).into()));
    if finished.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    finished?;
    complain(&format!("{} written to {}\n", counted(printer.printed, "endpoint"), file.display()));
    Ok(())
}

/// Prints the endpoints of a network, or all, and the sums.
pub(super) fn show(vni: Option<&str>, form: Form, socket: &Socket) -> Result<Reader, Failure> {
    let number = |text: &str| {
        text.parse().map_err(|_| Failure::from(Usage::BadVni { text: text.to_owned() }))
    };
    let vni = vni.map(number).transpose()?;
    let mut ask = Ask::new(socket)?;
    let request = v1::EndpointsRequest { vni };
    let mut pages = ask.call(async |client| client.show_endpoints(request).await)?;
    let shape = match form {
        Form::Table => Shape::Table,
        Form::Json => Shape::File(FileForm::Json),
    };
    ask.wait(print_all(&mut pages, shape))
}

async fn print_all(
    pages: &mut Streaming<v1::EndpointPage>,
    shape: Shape,
) -> Result<Reader, Failure> {
    let mut printer = Printer::new(shape);
    while let Some(page) = pages.message().await.map_err(AnswerError)? {
        if print_on(&printer.page(&page))? == Reader::Gone {
            return Ok(Reader::Gone);
        }
        if page.sums.is_some() {
            return Ok(Reader::Reads);
        }
    }
    Err(LiveError::StreamEnded.into())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Table,
    File(FileForm),
}

/// Writes pages.
struct Printer {
    shape: Shape,
    printed: u64,
}

impl Printer {
    fn new(shape: Shape) -> Printer {
        Printer { shape, printed: 0 }
    }

    fn page(&mut self, page: &v1::EndpointPage) -> String {
        let mut text = String::new();
        for endpoint in &page.endpoints {
            match (self.shape, self.printed) {
                (Shape::Table, 0) => text.push_str(&format!("Endpoints\n{}", row(&HEADER))),
                (Shape::File(FileForm::Csv), 0) => text.push_str(CSV_HEADER),
                (Shape::File(FileForm::Json), 0) => text.push_str("{\"endpoints\": [\n"),
                (Shape::File(FileForm::Json), _) => text.push_str(",\n"),
                (Shape::Table | Shape::File(FileForm::Csv), _) => {}
            }
            text.push_str(&match self.shape {
                Shape::Table => row(&cells(endpoint).each_ref().map(String::as_str)),
                Shape::File(FileForm::Csv) => csv_line(endpoint),
                Shape::File(FileForm::Json) => json_line(endpoint),
            });
            self.printed += 1;
        }
        if let Some(sums) = &page.sums {
            text.push_str(&self.end(sums));
        }
        text
    }

    fn end(&self, sums: &v1::EndpointSums) -> String {
        match (self.shape, self.printed) {
            (Shape::File(FileForm::Json), 0) => {
                format!("{{\"endpoints\": [], \"sums\": {}}}\n", json_line(sums))
            }
            (Shape::File(FileForm::Json), _) => format!("\n], \"sums\": {}}}\n", json_line(sums)),
            (Shape::File(FileForm::Csv), 0) => CSV_HEADER.to_owned(),
            (Shape::File(FileForm::Csv), _) => String::new(),
            (Shape::Table, printed) => {
                let before = if printed == 0 { "no endpoints\n\n" } else { "\n" };
                let v1::EndpointSums { endpoints, max, hosts, tombstones } = sums;
                format!(
                    "{before}{endpoints} of {max} endpoints, at {} of their networks; {} \
                     remembered\n",
                    counted(*hosts, "host"),
                    counted(*tombstones, "deletion"),
                )
            }
        }
    }
}

const HEADER: [&str; 6] = ["vni", "address", "host", "host MAC", "MAC", "revision"];
/// Widths that hold what is usual; longer cells push the rest of their line to the right.
const WIDTHS: [usize; 6] = [8, 15, 15, 17, 17, 8];

fn cells(endpoint: &v1::Endpoint) -> [String; 6] {
    let v1::Endpoint { vni, address, host, host_mac, mac, revision } = endpoint;
    let host_mac = host_mac.clone().unwrap_or_else(|| "-".into());
    let (address, host, mac) = (address.clone(), host.clone(), mac.clone());
    [vni.to_string(), address, host, host_mac, mac, revision.to_string()]
}

fn row(cells: &[&str; 6]) -> String {
    let mut line = String::from(" ");
    for (place, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        let cell = config::escaped_line(cell);
        match place {
            0 | 5 => line.push_str(&format!(" {cell:>width$}")),
            _ => line.push_str(&format!("  {cell:<width$}")),
        }
    }
    format!("{}\n", line.trim_end())
}

#[cfg(test)]
mod tests;
