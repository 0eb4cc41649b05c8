//! Files that hold secrets, or lie where others may write: what is made is new and private, no link is followed, and
//! nothing is opened that is no regular file, so that nobody else gets the content, redirects it, or has the opener
//! wait.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use crate::sys::effective_user;

/// Permissions of a file that only its owner reads and writes.
const PRIVATE: u32 = 0o600;
/// Others than owner and group may read, write or run it.
const OF_OTHERS: u32 = 0o007;
/// Group or others may write to it.
const OTHERS_WRITE: u32 = 0o022;
/// Everybody may write to it.
const EVERYBODY_WRITES: u32 = 0o002;
/// In such a directory nobody removes or renames what belongs to somebody else.
const STICKY: u32 = 0o1000;

fn refuse<T>(kind: io::ErrorKind, text: impl Into<String>) -> io::Result<T> {
    Err(io::Error::new(kind, text.into()))
}

/// Makes a file that only this user reads and writes. Whatever has the name already is an error, a link as well.
pub fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(PRIVATE).open(path)
}

/// As [`create_new`], in the place of whatever has the name: that is removed, and not opened.
pub fn create_in_place(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => create_new(path),
    }
}

/// Opens a regular file that somebody has named; a link to one counts. Does not wait for the other end of a FIFO.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    regular(options.custom_flags(libc::O_NONBLOCK).open(path)?)
}

/// Opens a file that this program has made, or makes it private if the options say so. Neither a link is followed, nor
/// is a file taken that somebody else has made or may write to.
pub fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let options = options.mode(PRIVATE).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return refuse(io::ErrorKind::InvalidInput, "it is a symbolic link, which is not followed here");
        }
        opened => regular(opened?)?,
    };
    let metadata = file.metadata()?;
    is_trusted(&metadata)?;
    if metadata.mode() & OTHERS_WRITE != 0 {
        return refuse(io::ErrorKind::PermissionDenied, "others may write to it: remove it, or chmod go-w");
    }
    Ok(file)
}

fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => refuse(io::ErrorKind::InvalidInput, "it is no regular file"),
    }
}

/// Whether it belongs to this user, or to root.
fn is_trusted(metadata: &fs::Metadata) -> io::Result<()> {
    let (owner, user) = (metadata.uid(), effective_user());
    match owner == user || owner == 0 {
        true => Ok(()),
        false => refuse(
            io::ErrorKind::PermissionDenied,
            format!("it belongs to user {owner}, and this process runs as user {user}"),
        ),
    }
}

/// Whether a directory can hold secrets: nobody else may put files in the place of those that are there.
pub fn check_directory(path: &Path) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    is_trusted(&metadata)?;
    if metadata.mode() & EVERYBODY_WRITES != 0 && metadata.mode() & STICKY == 0 {
        let path = path.display();
        return refuse(
            io::ErrorKind::PermissionDenied,
            format!("everybody may write to this directory: chmod o-w {path}, or name a new one below it"),
        );
    }
    Ok(())
}

/// Reads a file with a secret, if nobody but its owner and its group may.
pub fn read_secret(path: &Path) -> io::Result<String> {
    use io::Read;
    let mut file = File::open(path)?;
    let mode = file.metadata()?.mode();
    if mode & OF_OTHERS != 0 {
        let text = format!(
            "other users may read or write it (mode {:04o}): chmod 600 {}",
            mode & 0o7777,
            path.display()
        );
        return refuse(io::ErrorKind::PermissionDenied, text);
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use pccl_testkit::directory::{Directory, set_mode};

    use super::*;

    #[test]
    fn what_is_made_is_new_and_private() {
        let directory = Directory::new("new");
        let (victim, file) = (directory.file("victim"), directory.file("file"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &file).unwrap();
        assert_eq!(create_new(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(open_own(&file, OpenOptions::new().append(true)).unwrap_err().to_string().contains("link"));
        let made = create_in_place(&file).unwrap();
        assert_eq!(made.metadata().unwrap().mode() & 0o777, PRIVATE);
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        open_own(&file, OpenOptions::new().append(true)).unwrap();
        set_mode(&file, 0o666);
        assert!(open_own(&file, OpenOptions::new().read(true)).unwrap_err().to_string().contains("chmod"));
    }

    #[test]
    fn a_fifo_is_not_waited_for() {
        let directory = Directory::new("fifo");
        let fifo = directory.file("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for open in [open_regular, open_own] {
            assert!(
                open(&fifo, OpenOptions::new().read(true)).unwrap_err().to_string().contains("no regular")
            );
            assert!(open(&fifo, OpenOptions::new().append(true)).is_err());
        }
    }

    #[test]
    fn a_directory_for_secrets_is_not_everybodys() {
        let directory = Directory::new("directory");
        for (mode, is_good) in [(0o700, true), (0o755, true), (0o777, false), (0o1777, true)] {
            set_mode(&directory.0, mode);
            assert_eq!(check_directory(&directory.0).is_ok(), is_good, "{mode:o}");
        }
    }

    #[test]
    fn a_secret_that_others_may_read_is_not_taken() {
        let directory = Directory::new("secret");
        let file = directory.file("run.key");
        fs::write(&file, "secret").unwrap();
        for mode in [0o644, 0o604, 0o602] {
            set_mode(&file, mode);
            let error = read_secret(&file).unwrap_err().to_string();
            assert!(error.ends_with(&format!("chmod 600 {}", file.display())), "{error}");
        }
        for mode in [0o600, 0o400, 0o640] {
            set_mode(&file, mode);
            assert_eq!(read_secret(&file).unwrap(), "secret");
        }
    }
}
