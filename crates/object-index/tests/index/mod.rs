mod basics;
mod kept;
mod owners;
mod support;
mod uploads;
