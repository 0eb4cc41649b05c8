//! Peers in other languages: programs that know the library by its interfaces for C and Python alone. Their sources are
//! in `clients/`; a run that wants them builds what they need.

use crate::{args::Args, children::this_program};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// The language that a peer is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    C,
    Python,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    c_peers: usize,
    python_peers: usize,
    c_program: PathBuf,
    python: PathBuf,
    script: PathBuf,
    /// Holds the Python package with the library inside.
    packages: PathBuf,
    library: Option<PathBuf>,
}

impl Clients {
    /// Builds what the peers of a run need, in its folder.
    ///
    /// # Errors
    /// Says what is missing, if peers in another language are wanted that this machine cannot run.
    pub(crate) fn build(args: &Args, folder: &Path) -> io::Result<Self> {
        if args.c_peers + args.python_peers == 0 {
            return Ok(Self::default());
        }
        let folder = std::path::absolute(folder)?;
        let mut clients = Self {
            c_peers: args.c_peers,
            python_peers: args.python_peers,
            c_program: folder.join("pccl-stress-peer-c"),
            python: args.python.clone(),
            script: sources().join("peer.py"),
            packages: folder.join("python"),
            library: None,
        };
        // First what is missing more often than cargo, and told sooner.
        if clients.c_peers > 0 {
            succeed(compiler().arg("--version").output(), "--c-peers needs a C compiler, see CC")?;
        }
        if clients.python_peers > 0 {
            let imported = clients.python().args(["-c", "import numpy"]).output();
            succeed(imported, "--python-peers needs a Python that has numpy, see --python")?;
        }
        let library = pccl_testkit::library::build(root())?.join("libpccl.so");
        if clients.c_peers > 0 {
            compile(&library, &clients.c_program)?;
        }
        if clients.python_peers > 0 {
            clients.make_package(&library)?;
            succeed(clients.python().args(["-c", "import pccl"]).output(), "the Python package")?;
        }
        clients.library = Some(library);
        Ok(clients)
    }

    /// The library that they load, if there are any.
    pub(crate) fn library(&self) -> Option<&Path> {
        self.library.as_deref()
    }

    /// In what the next peer is written; `count` tells how many there are of a language.
    pub(crate) fn next(&self, count: impl Fn(Language) -> usize) -> Language {
        if count(Language::C) < self.c_peers {
            Language::C
        } else if count(Language::Python) < self.python_peers {
            Language::Python
        } else {
            Language::Rust
        }
    }

    /// The program of a peer, to which its arguments are added.
    pub(crate) fn program(&self, language: Language) -> io::Result<Command> {
        Ok(match language {
            Language::Rust => return this_program(),
            Language::C => Command::new(&self.c_program),
            Language::Python => {
                let mut command = self.python();
                command.arg(&self.script);
                command
            }
        })
    }

    fn python(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.env("PYTHONPATH", &self.packages).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// The package of this repository, with the library inside.
    fn make_package(&self, library: &Path) -> io::Result<()> {
        let package = self.packages.join("pccl");
        fs::create_dir_all(&package)?;
        for entry in fs::read_dir(root().join("python/pccl"))? {
            let path = entry?.path();
            if let (Some(name), Some("py")) = (path.file_name(), path.extension().and_then(|it| it.to_str()))
            {
                fs::copy(&path, package.join(name))?;
            }
        }
        fs::copy(library, package.join("libpccl.so")).map(drop)
    }
}

fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Compiles the peer in C. Floats must round as the source says: nothing is contracted.
fn compile(library: &Path, program: &Path) -> io::Result<()> {
    let directory = library.parent().unwrap_or(library);
    let output = compiler()
        .args(["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-I"])
        .arg(root().join("include"))
        .arg(sources().join("peer.c"))
        .arg("-o")
        .arg(program)
        .arg("-L")
        .arg(directory)
        .arg(format!("-Wl,-rpath,{}", directory.display()))
        .args(["-lpccl", "-lm", "-pthread"])
        .output();
    succeed(output, "the peer in C").map(drop)
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// The output of a program, if it succeeded.
fn succeed(output: io::Result<Output>, need: &str) -> io::Result<Output> {
    let output = output.map_err(|error| io::Error::other(format!("{need}: {error}")))?;
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{need}: {}", text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_filled_up_one_after_the_other() {
        let clients = Clients { c_peers: 1, python_peers: 2, ..Clients::default() };
        let next = |c, python| {
            clients.next(|language| match language {
                Language::C => c,
                Language::Python => python,
                Language::Rust => 9,
            })
        };
        assert_eq!([next(0, 0), next(1, 0), next(0, 2)], [Language::C, Language::Python, Language::C]);
        assert_eq!(next(1, 2), Language::Rust);
        assert_eq!(Clients::default().next(|_| 0), Language::Rust);
    }
}
