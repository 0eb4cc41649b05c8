//! Where the program listens for an operator unless told otherwise, and where `kick` looks for it: in a directory that
//! only one user can write to, under a name that contains the port.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

/// The directory of services and of root.
const SERVICES: &str = "/run/pccl";

/// The facts that the environment and the system tell about this process.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    /// The effective user.
    pub(crate) user: u32,
    /// `RUNTIME_DIRECTORY`, which a service manager sets: one directory or several with colons between them.
    pub(crate) service: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`, which a login sets.
    pub(crate) login: Option<PathBuf>,
    /// The directory of services and of root.
    pub(crate) services: PathBuf,
    /// Where everybody may make a directory.
    pub(crate) temporary: PathBuf,
}

impl Surroundings {
    /// Those of this process.
    pub(crate) fn here() -> Self {
        let directory = |name: &str| {
            let value = std::env::var(name).ok()?;
            let first = PathBuf::from(value.split(':').next().unwrap_or_default());
            first.is_absolute().then_some(first)
        };
        Self {
            user: tinysockets::sys::effective_user(),
            service: directory("RUNTIME_DIRECTORY"),
            login: directory("XDG_RUNTIME_DIR"),
            services: SERVICES.into(),
            // Not TMPDIR: the master and who kicks may have different ones.
            temporary: "/tmp".into(),
        }
    }

    fn private(&self) -> PathBuf {
        self.temporary.join(format!("pccl-{}", self.user))
    }

    /// Where a master that leads on `port` is to listen, the best place first. Directories are made where needed; a
    /// place that is not safe is left out, and the log says why.
    pub(crate) fn places_to_listen(&self, port: u16) -> Vec<PathBuf> {
        let mut places: Vec<PathBuf> = [&self.service, &self.login].into_iter().flatten().cloned().collect();
        // Only root can write to where the services' directory is: whoever owns it, root may use it.
        let mut made = vec![(self.private(), Some(self.user))];
        if self.user == 0 {
            made.insert(0, (self.services.clone(), None));
        }
        for (directory, owner) in made {
            match make_private(&directory, owner) {
                Ok(()) => places.push(directory),
                Err(error) => log::debug!("no operator's socket in {}: {error}", directory.display()),
            }
        }
        in_all(places, port)
    }

    /// Where the master that leads on `port` may be listening, if this user may talk to it.
    fn places_to_look(&self, port: u16) -> Vec<PathBuf> {
        let login = self.login.clone().unwrap_or_else(|| format!("/run/user/{}", self.user).into());
        let private = self.private();
        let mut places: Vec<PathBuf> = self.service.iter().cloned().collect();
        places.extend([login, self.services.clone()]);
        // Somebody else could have made it, and answer in the place of the master.
        if check_private(&private, Some(self.user)).is_ok() {
            places.push(private);
        }
        in_all(places, port)
    }

    /// The socket of the running master that leads on `port`.
    pub(crate) fn find(&self, port: u16) -> Result<PathBuf, String> {
        let mut seen = Vec::new();
        for place in self.places_to_look(port) {
            match UnixStream::connect(&place) {
                Ok(_) => return Ok(place),
                Err(error) => seen.push(format!("{} ({error})", place.display())),
            }
        }
        Err(format!(
            "no master with port {port} listens for an operator on this machine: {}; name its port with --port, or \
             its socket \
             with --admin, and ask as the user that runs it",
            seen.join(", ")
        ))
    }
}

fn in_all(mut directories: Vec<PathBuf>, port: u16) -> Vec<PathBuf> {
    directories.dedup();
    directories.into_iter().map(|directory| directory.join(format!("pccl-master-{port}.sock"))).collect()
}

/// Makes a directory that only this user can write to, or takes it as such a one.
fn make_private(directory: &Path, owner: Option<u32>) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check_private(directory, owner),
    }
}

/// Nobody but its owner can have put anything into the directory. A link to a directory is none.
fn check_private(directory: &Path, owner: Option<u32>) -> io::Result<()> {
    let metadata = fs::symlink_metadata(directory)?;
    let refused = |text: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, text.to_owned()));
    if !metadata.is_dir() {
        return refused("it is not a directory");
    }
    if owner.is_some_and(|owner| metadata.uid() != owner) {
        return refused("another user made it");
    }
    if metadata.mode() & 0o022 != 0 {
        return refused("others may write to it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    };

    struct Place(Surroundings);

    impl Place {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("pccl-place-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(&root).unwrap();
            let user = tinysockets::sys::effective_user();
            let services = root.join("run/pccl");
            Self(Surroundings { user, service: None, login: None, services, temporary: root })
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.temporary);
        }
    }

    #[test]
    fn what_a_master_listens_at_is_found_by_its_port() {
        let place = Place::new("found");
        let here = &place.0;
        let listen = here.places_to_listen(4000);
        let private = here.private();
        assert_eq!(fs::metadata(&private).unwrap().mode() & 0o777, 0o700);
        assert_eq!(listen.last().unwrap(), &private.join("pccl-master-4000.sock"));
        assert!(here.find(4000).unwrap_err().contains("--admin"));
        let _listener = UnixListener::bind(listen.last().unwrap()).unwrap();
        assert_eq!(here.find(4000).as_ref(), Ok(listen.last().unwrap()));
        assert!(here.find(4001).unwrap_err().contains("4001"));
    }

    #[test]
    fn a_service_comes_before_a_login_and_both_before_what_is_made() {
        let mut place = Place::new("order");
        let root = place.0.temporary.clone();
        place.0.service = Some(root.join("service"));
        place.0.login = Some(root.join("login"));
        // Root makes the directory of services as well, if the system has a place for it.
        place.0.user = 12;
        let places = place.0.places_to_listen(1);
        assert_eq!(places, ["service", "login"].map(|name| root.join(name).join("pccl-master-1.sock")));
    }

    #[test]
    fn root_listens_where_services_do() {
        let mut place = Place::new("root");
        place.0.user = 0;
        fs::create_dir(place.0.services.parent().unwrap()).unwrap();
        let listen = place.0.places_to_listen(7);
        assert_eq!(listen[0], place.0.services.join("pccl-master-7.sock"));
    }

    #[test]
    fn a_directory_that_somebody_else_could_write_to_is_not_used() {
        let place = Place::new("unsafe");
        let here = &place.0;
        let private = here.private();
        let refused = |here: &Surroundings| {
            let listen = here.places_to_listen(1).iter().all(|path| !path.starts_with(&private));
            listen && here.places_to_look(1).iter().all(|path| !path.starts_with(&private))
        };
        fs::create_dir(&private).unwrap();
        fs::set_permissions(&private, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(here));
        fs::remove_dir(&private).unwrap();
        let elsewhere = here.temporary.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &private).unwrap();
        assert!(refused(here));
        fs::remove_file(&private).unwrap();
        // Another user was there first.
        let other = Surroundings { user: here.user + 1, ..here.clone() };
        fs::create_dir(other.private()).unwrap();
        assert!(check_private(&other.private(), Some(other.user)).is_err());
        assert!(!refused(here), "nothing stands in the way any more");
    }
}
