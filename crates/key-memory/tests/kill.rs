//! SIGKILL of a process among its stores, and the recovery by the next process.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use key_memory::{RecordKey, StoredMemory};

const CELLS: u32 = 64;
/// Set for the process that is killed.
const WRITER: &str = "KEY_MEMORY_TEST_WRITER";
/// Reports of the writer before the kill.
const REPORTS: usize = 50;

fn key(id: u64) -> RecordKey {
    RecordKey { kind: 1, id }
}

fn payload(round: u64) -> Vec<u8> {
    vec![round as u8; 1500]
}

/// Stores rounds of records for ever in the memory at standard input, and reports each round.
fn write_for_ever() -> ! {
    let descriptor: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut memory = StoredMemory::open(descriptor, CELLS).unwrap();
    for round in 0.. {
        memory.store(key(round % 8), &payload(round)).unwrap();
        memory.remove(key((round + 4) % 8));
        println!("round={round}");
    }
    unreachable!("the parent kills the process")
}

#[test]
fn records_of_a_killed_process_are_whole_in_the_next_one() {
    if std::env::var_os(WRITER).is_some() {
        write_for_ever();
    }
    let memory = StoredMemory::create(CELLS).unwrap();
    let descriptor = || memory.as_fd().try_clone_to_owned().unwrap();
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--nocapture", "records_of_a_killed_process_are_whole_in_the_next_one"])
        .env(WRITER, "1")
        .stdin(Stdio::from(descriptor()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let reports = BufReader::new(writer.stdout.take().unwrap());
    let rounds = reports.lines().filter_map(|line| {
        let line = line.unwrap();
        line.split_once("round=").and_then(|(_, round)| round.parse::<u64>().ok())
    });
    let mut writer_pid = Some(&mut writer);
    let mut last = 0;
    for (index, round) in rounds.enumerate() {
        last = round;
        if let Some(writer) = writer_pid.take_if(|_| index == REPORTS) {
            writer.kill().unwrap();
        }
    }
    writer.wait().unwrap();
    assert!(last >= REPORTS as u64);

    let next = StoredMemory::open(descriptor(), CELLS).unwrap();
    let records = next.records();
    // The last reported round, or the round of the kill.
    let newest = records.last().unwrap();
    let is_newest = |round: u64| newest.key == key(round % 8) && *newest.payload == payload(round);
    assert!((last..=last + 2).any(is_newest), "round {last}: {:?}", newest.key);
    for record in &records {
        let is_whole = record.payload.iter().all(|byte| *byte == record.payload[0]);
        assert!(is_whole && record.payload.len() == 1500, "{:?} is torn", record.key);
    }
    // Four rounds stay, and a kill may keep one that a removal had not reached.
    assert!((4..=5).contains(&records.len()), "{} records", records.len());
}

#[test]
fn probe_names_the_kind_of_memory_that_is_made() {
    let memory = StoredMemory::create(CELLS).unwrap();
    assert_eq!(key_memory::supported_kind(), Ok(memory.kind()));
    println!("{}", memory.kind().name());
}
