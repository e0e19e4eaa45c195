//! `lockgate endpoint watch`: changes of endpoints as they are applied.

use api::v1::{self, endpoint_change::Change};
use console::output::{Reader, json_line, print_on};
use serde::Serialize;

use super::{Ask, Failure, LiveError, Socket, cells, row};

/// Print changes of endpoints as they are applied, until it is interrupted
///
/// With --since it begins with the changes after that revision, and prints some again that were
/// applied before it if changes came out of order. The daemon keeps the latest 65,536 changes, over
/// a restart too; if the revision is older, take the whole table first: begin to watch without
/// --since, then export. A reader who is too slow is cut off, with the revision to go on from.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Begin with the changes after this revision [default: those from now on]
    #[arg(long, value_name = "REVISION")]
    since: Option<u64>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Prints changes as they come; each is there when its line is.
pub(super) fn run(args: &Args, socket: &Socket) -> Result<(), Failure> {
    let mut ask = Ask::new(socket)?;
    let request = v1::EndpointsWatch { after: args.since };
    let mut stream = ask.call(async |client| client.watch_endpoints(request).await)?;
    while let Some(watched) = ask.next(&mut stream)? {
        let changes = watched.changes.into_iter().filter_map(|change| change.change);
        let text: String = match args.json {
            true => changes.map(|change| format!("{}\n", json_line(&Line::from(change)))).collect(),
            false => changes.map(|change| human(&change)).collect(),
        };
        // The reader closed the pipe: a normal end.
        if print_on(&text)? == Reader::Gone {
            return Ok(());
        }
    }
    Err(LiveError::StreamEnded.into())
}

/// A change as a line of JSON.
#[derive(Serialize)]
struct Line {
    change: &'static str,
    vni: u32,
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    revision: u64,
}

impl From<Change> for Line {
    fn from(change: Change) -> Line {
        match change {
            Change::Put(v1::Endpoint { vni, address, host, host_mac, mac, revision }) => {
                let (host, mac) = (Some(host), Some(mac));
                Line { change: "put", vni, address, host, host_mac, mac, revision }
            }
            Change::Delete(v1::EndpointName { vni, address, revision }) => {
                let (host, host_mac, mac) = (None, None, None);
                Line { change: "delete", vni, address, host, host_mac, mac, revision }
            }
        }
    }
}

/// A change for people: the columns of `lockgate show endpoint` behind the word.
fn human(change: &Change) -> String {
    let (word, cells) = match change {
        Change::Put(endpoint) => ("put", cells(endpoint)),
        Change::Delete(v1::EndpointName { vni, address, revision }) => {
            let [host, host_mac, mac] = ["-"; 3].map(str::to_owned);
            (
                "delete",
                [vni.to_string(), address.clone(), host, host_mac, mac, revision.to_string()],
            )
        }
    };
    format!("{word:<6}{}", row(&cells.each_ref().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> [Change; 2] {
        let (vni, address) = (7, "10.0.0.2".to_owned());
        let put = v1::Endpoint {
            vni,
            address: address.clone(),
            host: "192.0.2.12".into(),
            host_mac: None,
            mac: "02:07:00:00:00:02".into(),
            revision: 9,
        };
        [Change::Put(put), Change::Delete(v1::EndpointName { vni, address, revision: 10 })]
    }

    #[test]
    fn a_change_is_one_line_for_people_and_one_object_for_programs() {
        let people = changes().map(|change| human(&change));
        assert_eq!(people[0].matches('\n').count(), 1);
        let words: Vec<&str> = people[0].split_whitespace().collect();
        assert_eq!(words, ["put", "7", "10.0.0.2", "192.0.2.12", "-", "02:07:00:00:00:02", "9"]);
        let words: Vec<&str> = people[1].split_whitespace().collect();
        assert_eq!(words, ["delete", "7", "10.0.0.2", "-", "-", "-", "10"]);
        let programs = changes().map(|change| json_line(&Line::from(change)));
        let put = concat!(
            r#"{"change":"put","vni":7,"address":"10.0.0.2","host":"192.0.2.12","#,
            r#""mac":"02:07:00:00:00:02","revision":9}"#,
        );
        assert_eq!(programs[0], put);
        assert_eq!(
            programs[1],
            r#"{"change":"delete","vni":7,"address":"10.0.0.2","revision":10}"#
        );
    }
}
