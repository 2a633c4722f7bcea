//! The job's user, looked up in the root's own /etc/passwd and /etc/group.

use std::fs;

/// Who the job runs as.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Supplementary groups, ascending.
    pub(crate) groups: Vec<u32>,
}

/// `user`, `uid`, `user:group` or `uid:gid`; empty = root.
pub(crate) fn look_up(text: &str) -> Result<Identity, String> {
    // A root without these files has only numbers.
    let read =
        |path: &str| fs::read(path).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    resolve(text, &read("/etc/passwd"), &read("/etc/group"))
}

fn resolve(text: &str, passwd: &str, group: &str) -> Result<Identity, String> {
    if text.is_empty() {
        return Ok(Identity { uid: 0, gid: 0, groups: vec![0] });
    }
    let (user, wanted_group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|f| {
        f.len() >= 4 && (f[0] == user || user.parse::<u32>().is_ok_and(|uid| f[2].parse() == Ok(uid)))
    });
    let number = |field: &str, what: &str| {
        field.parse::<u32>().map_err(|_| format!("/etc/passwd has no valid {what} for user {user}"))
    };
    let (uid, primary, name) = match (&entry, user.parse::<u32>()) {
        (Some(f), _) => (number(f[2], "user id")?, number(f[3], "group id")?, Some(f[0])),
        (None, Ok(uid)) => (uid, 0, None),
        (None, Err(_)) => return Err(format!("no such user: {user} (not in the root's /etc/passwd)")),
    };
    let groups: Vec<Vec<&str>> =
        group.lines().map(|line| line.split(':').collect::<Vec<_>>()).filter(|f| f.len() >= 3).collect();
    let Some(wanted) = wanted_group else {
        let mut all: Vec<u32> = groups
            .iter()
            .filter(|f| f.get(3).is_some_and(|members| members.split(',').any(|m| Some(m) == name)))
            .filter_map(|f| f[2].parse().ok())
            .chain([primary])
            .collect();
        all.sort_unstable();
        all.dedup();
        return Ok(Identity { uid, gid: primary, groups: all });
    };
    let gid = match groups.iter().find(|f| f[0] == wanted) {
        Some(f) => f[2].parse().map_err(|_| format!("/etc/group has no valid id for group {wanted}"))?,
        None => {
            wanted.parse().map_err(|_| format!("no such group: {wanted} (not in the root's /etc/group)"))?
        }
    };
    Ok(Identity { uid, gid, groups: vec![gid] })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nann:x:1000:1001::/home/ann:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nann:x:1001:\nstaff:x:50:bob,ann\ndisk:x:6:ann\n";

    fn resolved(text: &str) -> Result<(u32, u32, Vec<u32>), String> {
        resolve(text, PASSWD, GROUP).map(|i| (i.uid, i.gid, i.groups))
    }

    #[test]
    fn names_numbers_and_groups() {
        assert_eq!(resolved(""), Ok((0, 0, vec![0])));
        assert_eq!(resolved("ann"), Ok((1000, 1001, vec![6, 50, 1001])));
        assert_eq!(resolved("1000"), Ok((1000, 1001, vec![6, 50, 1001])));
        assert_eq!(resolved("ann:staff"), Ok((1000, 50, vec![50])));
        assert_eq!(resolved("77"), Ok((77, 0, vec![0])));
        assert_eq!(resolved("77:78"), Ok((77, 78, vec![78])));
    }

    #[test]
    fn what_is_not_there_is_named() {
        assert!(resolved("eve").unwrap_err().contains("no such user: eve"));
        assert!(resolved("ann:eves").unwrap_err().contains("no such group: eves"));
    }
}
