//! `recognise CACHE ROOT`: opens a root and prints its id and what the second opening costs to a clock outside.

use image::dir::DirOptions;
use image::{OpenOptions, open};
use std::{error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [cache, root] = &args[..] else { return Err("usage: recognise CACHE ROOT".into()) };
    let options =
        OpenOptions { cache: Path::new(cache), directory: DirOptions::default(), progress: &|_| () };
    let opened = open(Path::new(root), &options)?;
    println!("{} {:?}, image of {} bytes", opened.id, opened.kind, opened.image().len());
    Ok(())
}
