//! Commands that change names.

use client::{Client, Error, child_path};
use wire::control::Node;

use crate::exit::{Done, Failure};

/// Mode of directories that are made without a model.
pub const DIR_MODE: u32 = 0o755;
/// Mode of files that are made without a model.
pub const FILE_MODE: u32 = 0o644;

/// `fs mkdir`.
pub async fn mkdir(client: &Client, paths: &[String], parents: bool) -> Done {
    for path in paths {
        if parents {
            client.mkdir_all(path, DIR_MODE).await?;
        } else {
            client.mkdir(path, DIR_MODE).await?;
        }
    }
    Ok(())
}

/// `fs rm`.
pub async fn rm(client: &Client, paths: &[String], recursive: bool, force: bool) -> Done {
    for path in paths {
        if path.chars().all(|c| c == '/') && !recursive {
            return Err(Failure::failed("/ is the root directory: it stays; name what is in it"));
        }
        let removed = if recursive {
            client.remove_tree(path).await.map(drop)
        } else {
            match client.lookup(path).await {
                Ok(found) if matches!(found.node, Node::Dir { .. }) => {
                    return Err(Failure::failed(format!(
                        "{path}: is a directory; remove it with all that is in it by rm -r"
                    )));
                }
                Ok(_) => client.unlink(path).await,
                Err(error) => Err(error),
            }
        };
        match removed {
            Err(Error::NotFound { .. }) if force => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// The last name of a path.
pub fn base_name(path: &str) -> Option<&str> {
    path.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty())
}

/// `dst`, or the path below it when it is a directory.
pub async fn destination(client: &Client, src_name: &str, dst: &str) -> Result<String, Failure> {
    match client.resolve(dst).await {
        Ok(found) if matches!(found.node, Node::Dir { .. }) => Ok(child_path(dst, src_name)),
        Ok(_) | Err(Error::NotFound { .. }) => Ok(dst.to_owned()),
        Err(error) => Err(error.into()),
    }
}

/// `fs mv`.
pub async fn mv(client: &Client, src: &str, dst: &str, replace: bool) -> Done {
    let name = base_name(src).ok_or_else(|| Failure::failed("the root directory stays"))?;
    let to = destination(client, name, dst).await?;
    Ok(client.rename(src, &to, replace).await?)
}

/// `fs ln`.
pub async fn ln(client: &Client, target: &str, path: &str, symbolic: bool) -> Done {
    let name = base_name(target).unwrap_or(target);
    let path = destination(client, name, path).await?;
    if symbolic {
        client.symlink(target, &path, 0o777).await?;
    } else {
        client.link(target, &path).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_names() {
        let given = ["/a/b", "/a/b/", "a", "/", ""];
        assert_eq!(given.map(base_name), [Some("b"), Some("b"), Some("a"), None, None]);
    }
}
