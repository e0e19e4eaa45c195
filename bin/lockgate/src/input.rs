//! A configuration that is named on the command line: a file, or `-` for standard input.

use std::path::{Path, PathBuf};

use config::{ConfigErrors, IncludedFiles, IncludedTexts, Loaded, Parsed, SetFiles};

use crate::failure::Failure;

/// The name of standard input in messages and in the list of revisions.
const STANDARD_INPUT: &str = "<stdin>";

/// FILE, or --file FILE.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct FileArgs {
    /// The configuration; `-` reads standard input
    #[arg(value_name = "FILE", required_unless_present = "file_option")]
    file: Option<PathBuf>,
    /// The configuration, as an option instead of FILE
    #[arg(short = 'f', long = "file", id = "file_option", value_name = "FILE")]
    #[arg(conflicts_with = "file")]
    option: Option<PathBuf>,
}

impl FileArgs {
    /// The file that was named.
    pub(crate) fn input(&self) -> Input {
        let named = self.file.as_ref().or(self.option.as_ref());
        Input::of(named.map_or(Path::new(""), PathBuf::as_path))
    }
}

/// The source of a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    /// Standard input.
    Standard,
    /// A file.
    File(PathBuf),
}

impl Input {
    /// Returns the input of a path: `-` is standard input; write `./-` for a file of this name.
    pub(crate) fn of(path: &Path) -> Input {
        match path.as_os_str() == "-" {
            true => Input::Standard,
            false => Input::File(path.to_owned()),
        }
    }

    /// Returns the path, if the input is a file.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Input::Standard => None,
            Input::File(path) => Some(path),
        }
    }

    /// Returns the name of the input in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Input::Standard => STANDARD_INPUT.to_owned(),
            Input::File(path) => path.display().to_string(),
        }
    }

    /// Reads its text.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub(crate) fn text(&self) -> Result<String, ConfigErrors> {
        match self {
            Input::Standard => config::text_of(std::io::stdin().lock(), STANDARD_INPUT),
            Input::File(path) => config::read_text(path),
        }
    }

    /// Reads the set files that this text of the input names, with the caller's rights. Warns of
    /// files that the daemon will not read at its start.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn included(&self, text: &str) -> Result<IncludedFiles, ConfigErrors> {
        IncludedTexts::read(text, &self.name(), self.base())
    }

    /// Reads the configuration without its keys, with the files of its sets of addresses.
    ///
    /// # Errors
    /// All mistakes of the text and of those files.
    pub(crate) fn parsed(&self) -> Result<Parsed, ConfigErrors> {
        let files = SetFiles::OfCaller(self.base());
        config::parse_with(&self.text()?, &self.name(), files)
    }

    /// Reads the configuration for this machine, and its keys: from `keys_dir` as the file says it,
    /// or from `keys` instead.
    ///
    /// # Errors
    /// All mistakes of the text.
    pub(crate) fn loaded(&self, keys: Option<&Path>) -> Result<Loaded, ConfigErrors> {
        let parsed = self.parsed()?.within(linux::machine_memory())?;
        let directory = self.keys_directory(&parsed, keys);
        parsed.load_keys_in(&directory)
    }

    /// Returns the directory of the key files: `keys` if given, else that of the file. For standard
    /// input a relative one starts at the working directory.
    pub(crate) fn keys_directory(&self, parsed: &Parsed, keys: Option<&Path>) -> PathBuf {
        keys.map_or_else(|| parsed.keys_directory(self.base()), Path::to_owned)
    }

    /// The directory that relative names in the configuration start from.
    fn base(&self) -> &Path {
        match self {
            Input::Standard => Path::new(""),
            Input::File(path) => config::base_of(path),
        }
    }

    /// The absolute path of [`Input::base`], through links, and of the file, for a daemon that
    /// works in another directory.
    ///
    /// # Errors
    /// The directory cannot be found.
    pub(crate) fn absolute(&self) -> Result<(PathBuf, String), Failure> {
        let base = match self.base() {
            here if here.as_os_str().is_empty() => Path::new("."),
            base => base,
        };
        let base = std::fs::canonicalize(base).map_err(Failure::file(base))?;
        let file = match self {
            Input::Standard => STANDARD_INPUT.to_owned(),
            Input::File(path) => {
                path.file_name().map_or(base.clone(), |name| base.join(name)).display().to_string()
            }
        };
        Ok((base, file))
    }
}
