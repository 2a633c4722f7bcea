#!/usr/bin/perl
# Regular expressions, hashes, sorting, packing, big numbers and forking in Perl.
use strict;
use warnings;
use Math::BigInt;
use Digest::SHA qw(sha256_hex);
use POSIX qw(floor fmod);
use List::Util qw(reduce shuffle);

my %count;
my $text = join ' ', map { ('alpha', 'beta', 'gamma', 'delta')[$_ * 7 % 4] . $_ % 13 } 1 .. 4000;
$count{$1}++ while $text =~ /\b([a-z]+)\d*\b/g;
print "$_ $count{$_}\n" for sort keys %count;
(my $changed = $text) =~ s/(\w)(\w+?)(\d+)/$3\U$1\E$2/g;
print sha256_hex($changed), "\n";
print Math::BigInt->new(2)->bpow(521)->bsub(1), "\n";
my @sorted = sort { $a->[1] <=> $b->[1] or $a->[0] cmp $b->[0] } map { [$_, fmod($_ * 2.718281828, 17)] } 1 .. 500;
printf "%s %.15g\n", @{$sorted[$_]} for 0, 250, 499;
print unpack('H*', pack('NnCa5w', 0xdeadbeef, 513, 65, 'hello', 300)), "\n";
print join(',', map { sprintf '%b', $_ } grep { $_ & 1 } 1 .. 15), "\n";
pipe(my $read, my $write) or die;
if (my $pid = fork // die) { close $write; print while <$read>; waitpid $pid, 0; print $? >> 8, "\n" }
else { close $read; print $write "from the child\n"; close $write; exit 3 }
local $SIG{ALRM} = sub { die "alarm\n" };
eval { alarm 1; select undef, undef, undef, 5; };
print $@;
