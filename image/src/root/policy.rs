//! What of the host's root a guest may see: the one place that says so. See `docs/decisions/host-root.md`.

use std::collections::BTreeMap;
use std::path::Path;

/// Directories that say something about the running host: shown empty. What leads to the working directory is shown
/// all the same.
const EMPTIED: [&[u8]; 6] = [b"proc", b"sys", b"dev", b"run", b"tmp", b"var/tmp"];

/// Not shown at all, wherever the root is.
const SECRETS: [&[u8]; 9] = [
    b"etc/shadow",
    b"etc/shadow-",
    b"etc/gshadow",
    b"etc/gshadow-",
    b"etc/sudoers",
    b"etc/sudoers.d",
    b"etc/ssl/private",
    b"etc/krb5.keytab",
    b"etc/NetworkManager/system-connections",
];

/// Not shown in any home directory.
const HOME_SECRETS: [&[u8]; 34] = [
    b".ssh",
    b".gnupg",
    b".pki",
    b".aws",
    b".azure",
    b".kube",
    b".oci",
    b".docker/config.json",
    b".config/gcloud",
    b".config/gh",
    b".config/hub",
    b".config/glab-cli",
    b".config/op",
    b".config/rclone",
    b".config/sops",
    b".config/google-chrome",
    b".config/chromium",
    b".config/BraveSoftware",
    b".mozilla",
    b".thunderbird",
    b".password-store",
    b".local/share/keyrings",
    b".local/share/kwalletd",
    b".netrc",
    b".git-credentials",
    b".config/git/credentials",
    b".npmrc",
    b".pypirc",
    b".pgpass",
    b".my.cnf",
    b".vault-token",
    b".terraform.d/credentials.tfrc.json",
    b".cargo/credentials.toml",
    b".cargo/credentials",
];

/// Below these another file system is followed, as distributions spread a system over several.
const FOLLOWED: [&[u8]; 10] =
    [b"usr", b"bin", b"sbin", b"lib", b"lib32", b"lib64", b"etc", b"opt", b"nix", b"gnu"];

/// How a path is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// As it is.
    Whole,
    /// A directory with nothing in it but, perhaps, the next step to the working directory.
    Emptied,
    /// Not there.
    Hidden,
}

/// The rules for one root. Paths are relative to it, without a slash at either end.
#[derive(Debug)]
pub(super) struct Policy {
    cwd: Vec<u8>,
    homes: Vec<Vec<u8>>,
    hidden: Vec<Vec<u8>>,
    /// Mount points below the root and the mount each shows.
    mounts: BTreeMap<Vec<u8>, u64>,
}

impl Policy {
    pub(super) fn new(cwd: Vec<u8>, home: Option<Vec<u8>>, hidden: Vec<Vec<u8>>, top: &Path) -> Policy {
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let homes = [Some(b"root".to_vec()), home.filter(|home| !home.is_empty())].into_iter().flatten();
        Policy { cwd, homes: homes.collect(), hidden, mounts: mounts(&table, top) }
    }

    pub(super) fn shown(&self, path: &[u8]) -> Shown {
        if self.hidden.iter().any(|hidden| hidden == path)
            || SECRETS.contains(&path)
            || self.home_secret(path)
        {
            return Shown::Hidden;
        }
        // Host keys are named for their kind.
        if path.starts_with(b"etc/ssh/ssh_host_") && path.ends_with(b"_key") {
            return Shown::Hidden;
        }
        let on_way = within(&self.cwd, path);
        if within(path, &self.cwd) {
            return Shown::Whole;
        }
        let emptied = EMPTIED.iter().any(|top| within(path, top));
        let mounted =
            self.mounts.contains_key(path) && !on_way && !FOLLOWED.iter().any(|top| within(path, top));
        if emptied || mounted { Shown::Emptied } else { Shown::Whole }
    }

    /// Whether `path` or anything above it is not shown.
    pub(super) fn hides(&self, path: &[u8]) -> bool {
        let ends = (0..=path.len()).filter(|&at| at == path.len() || path[at] == b'/');
        ends.map(|end| &path[..end]).any(|part| self.shown(part) == Shown::Hidden)
    }

    /// The one name an emptied directory holds, if it leads to the working directory.
    pub(super) fn step_to_cwd(&self, path: &[u8]) -> Option<&[u8]> {
        let rest = self.cwd.strip_prefix(path)?.strip_prefix(b"/")?;
        rest.split(|&byte| byte == b'/').next()
    }

    /// The mount a path must lie in; none if the table does not say.
    pub(super) fn mount_of(&self, path: &[u8]) -> Option<u64> {
        let mut part = path;
        loop {
            if let Some(&mount) = self.mounts.get(part) {
                return Some(mount);
            }
            if part.is_empty() {
                return None;
            }
            part = part.iter().rposition(|&byte| byte == b'/').map_or(&[][..], |at| &part[..at]);
        }
    }

    fn home_secret(&self, path: &[u8]) -> bool {
        let own = self.homes.iter().filter_map(|home| path.strip_prefix(&home[..])?.strip_prefix(b"/"));
        let user = path.strip_prefix(b"home/").and_then(|rest| {
            let slash = rest.iter().position(|&byte| byte == b'/')?;
            Some(&rest[slash + 1..])
        });
        own.chain(user).any(|rest| HOME_SECRETS.contains(&rest))
    }
}

/// Whether `path` is `top` or below it.
fn within(path: &[u8], top: &[u8]) -> bool {
    top.is_empty() || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// The mount points at or below `top` in a `mountinfo` table (proc(5)): of several at one point the last is seen.
fn mounts(table: &[u8], top: &Path) -> BTreeMap<Vec<u8>, u64> {
    let top = top.as_os_str().as_encoded_bytes();
    let top = top.strip_suffix(b"/").unwrap_or(top);
    let mut found = BTreeMap::new();
    for line in table.split(|&byte| byte == b'\n') {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = fields.next().and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
        let (Some(id), Some(point)) = (id, fields.nth(3)) else { continue };
        let point = unescape(point);
        if let Some(rest) = point.strip_prefix(top).filter(|rest| rest.first() == Some(&b'/')) {
            found.insert(rest[1..].to_vec(), id);
        }
    }
    found
}

/// Undoes `\040` and the like.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).filter(|d| *first == b'\\' && d.iter().all(|d| (b'0'..b'8').contains(d)));
        match octal {
            Some(d) => {
                out.push(d.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(cwd: &str) -> Policy {
        let table = b"20 1 8:1 / / rw - ext4 /dev/a rw\n21 20 0:5 / /proc rw - proc p rw\n\
            22 20 8:2 / /home rw - ext4 /dev/b rw\n23 20 8:3 / /usr rw - ext4 /dev/c rw\n\
            24 20 8:4 / /mnt/a\\040b rw - ext4 /dev/d rw\n";
        Policy {
            cwd: cwd.into(),
            homes: vec![b"root".to_vec(), b"srv/me".to_vec()],
            hidden: vec![b"var/rewind".to_vec()],
            mounts: mounts(table, Path::new("/")),
        }
    }

    #[test]
    fn secrets_and_the_running_host_are_not_shown() {
        let policy = policy("home/u/work");
        for hidden in ["etc/shadow", "root/.ssh", "home/any/.aws", "srv/me/.config/gh", "var/rewind"] {
            assert_eq!(policy.shown(hidden.as_bytes()), Shown::Hidden, "{hidden}");
        }
        assert_eq!(policy.shown(b"etc/ssh/ssh_host_rsa_key"), Shown::Hidden);
        assert_eq!(policy.shown(b"etc/ssh/ssh_host_rsa_key.pub"), Shown::Whole);
        for emptied in ["proc", "tmp", "dev", "mnt/a b"] {
            assert_eq!(policy.shown(emptied.as_bytes()), Shown::Emptied, "{emptied}");
        }
        for whole in ["", "home", "home/u", "home/u/work/.ssh", "usr", "etc/passwd", "runner", "home/.ssh"] {
            assert_eq!(policy.shown(whole.as_bytes()), Shown::Whole, "{whole}");
        }
        assert!(policy.hides(b"root/.ssh/below"));
    }

    #[test]
    fn a_working_directory_in_tmp_is_shown_and_nothing_else_there() {
        let policy = policy("tmp/x/work");
        assert_eq!(policy.shown(b"tmp"), Shown::Emptied);
        assert_eq!(policy.step_to_cwd(b"tmp"), Some(&b"x"[..]));
        assert_eq!(policy.shown(b"tmp/x"), Shown::Emptied);
        assert_eq!(policy.step_to_cwd(b"tmp/x"), Some(&b"work"[..]));
        assert_eq!(policy.shown(b"tmp/x/work"), Shown::Whole);
        assert_eq!(policy.shown(b"tmp/x/work/sub"), Shown::Whole);
        assert_eq!(policy.step_to_cwd(b"proc"), None);
        assert_eq!(policy.mount_of(b"home/u"), Some(22));
        assert_eq!(policy.mount_of(b"etc"), Some(20));
    }
}
