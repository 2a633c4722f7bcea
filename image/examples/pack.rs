//! `pack ROOT OUT`: writes the image that `--root ROOT` would serve to a file. Digests are kept in `$PACK_CACHE`, else
//! in a directory beside OUT.

use image::dir::DirOptions;
use image::{OpenOptions, open};
use std::{error::Error, fs::File, path::Path, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [root, out] = &args[..] else { return Err("usage: pack ROOT OUT".into()) };
    let cache =
        std::env::var_os("PACK_CACHE").map_or_else(|| Path::new(out).with_extension("cache"), PathBuf::from);
    let options = OpenOptions { cache: &cache, directory: DirOptions::default(), progress: &|_| () };
    let opened = open(Path::new(root), &options)?;
    for one in &opened.left_out {
        eprintln!("left out: {} ({})", String::from_utf8_lossy(&one.path), one.what);
    }
    opened.write_to(&File::create(out)?, &mut |_| ())?;
    println!("{} {:?}", opened.id, opened.kind);
    Ok(())
}
