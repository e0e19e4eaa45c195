//! The number of this process among all processes of lockgated on the machine.

use std::io;
use std::path::Path;

use charon_link::ProcessNumber;

use crate::durable_file::write_file;

/// The file with the last number, in the state directory and in the run directory.
const FILE: &str = "process-number";

/// Smallest number that is drawn where no number is known.
const FIRST_DRAWN: u32 = ProcessNumber::LARGEST / 2;

/// Returns the number of this process, above each number of before.
///
/// Either directory is enough to know the last number: the state directory survives a boot, and the
/// run directory a restored state directory. Where neither has a number, the number is random, so a
/// number of before comes again with a chance below 1 in 8 million.
///
/// # Errors
/// The operating system's: no number was taken.
pub(crate) fn take(run: &Path, state: &Path) -> io::Result<ProcessNumber> {
    let files = [run, state].map(|directory| directory.join(FILE));
    let mut last = None;
    for file in &files {
        last = last.max(read(file)?);
    }
    let next = match last {
        Some(last) => ProcessNumber::new(last.value() + 1),
        None => None,
    };
    let number = match next {
        Some(number) => number,
        None => draw()?,
    };
    for file in &files {
        write_file(file, &format!("{}\n", number.value()))?;
    }
    Ok(number)
}

/// The number in a file; `None`: the file is missing or damaged.
fn read(file: &Path) -> io::Result<Option<ProcessNumber>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text.trim().parse().ok().and_then(ProcessNumber::new)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

fn draw() -> io::Result<ProcessNumber> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let number = FIRST_DRAWN + u32::from_ne_bytes(bytes) % (ProcessNumber::LARGEST - FIRST_DRAWN);
    ProcessNumber::new(number).ok_or_else(|| io::Error::other("no process number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(directory: &Path, text: &str) {
        std::fs::write(directory.join(FILE), text).unwrap();
    }

    #[test]
    fn numbers_rise_while_one_directory_remembers_and_are_drawn_otherwise() {
        let [run, state] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let next = || take(run.path(), state.path()).unwrap().value();
        let first = next();
        assert!((FIRST_DRAWN..ProcessNumber::LARGEST).contains(&first));
        assert_eq!((next(), next()), (first + 1, first + 2));
        std::fs::remove_file(run.path().join(FILE)).unwrap();
        assert_eq!(next(), first + 3);
        // A backup of the state directory was restored.
        written(state.path(), "1\n");
        assert_eq!(next(), first + 4);
        written(state.path(), "no number");
        assert_eq!(next(), first + 5);
        written(run.path(), &format!("{}\n", ProcessNumber::LARGEST));
        assert!((FIRST_DRAWN..ProcessNumber::LARGEST).contains(&next()));
    }
}
