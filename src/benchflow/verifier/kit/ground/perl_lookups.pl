# What files other than the agent's require by name is the environment's, if it has a module of that name.
#
# `PERL5OPT` loads this before the program is compiled. It loads nothing itself: `-I` may name a folder of the agent's.
# A program that is itself the agent's, named by the verifier, looks up what it likes.

package VerifierGround;

my $ground = "/run/verifier-ground";
my ($laid, %added, %known, %own);

sub read_changes {
    open(my $file, "<", "$ground/changes") or return 0;
    $laid = (stat $file)[10];
    local $/ = "\0";
    while (defined(my $record = <$file>)) {
        chomp $record;
        my ($word, $path) = split / /, $record, 2;
        return 0 if $word eq "kept";
        $added{$path} = 1 if $word eq "added";
    }
    return scalar %added;
}

# Whether a file is the agent's, or came there while the verifier works, perhaps out of an archive of the agent's.
sub is_doubtful {
    my ($path) = @_;
    return $known{$path} if defined $known{$path} && $path =~ m{^/};
    open(my $file, "<", $path) or return 0;
    my $real = readlink "/proc/self/fd/" . fileno $file;
    return 0 if !defined $real || $real =~ m{^(/verifier|/tests|\Q$ground\E)/};
    my $found = (is_added($real) || (stat $file)[10] >= $laid) && !is_copy($real);
    return $known{$path} = $found ? 1 : 0;
}

sub is_added {
    my ($path) = @_;
    while ($path =~ m{^/.}) {
        return 1 if $added{$path};
        $path =~ s{/[^/]*$}{};
    }
    return 0;
}

# Whether a file is a copy of one of the verifier's, wherever it is and over whatever file it was made.
sub is_copy {
    my ($path) = @_;
    my ($size, $touched) = (stat $path)[7, 10];
    return 0 if !$size || $touched < $laid;
    %own = files_of_verifier() unless %own;
    for my $other (@{$own{$size} || []}) {
        return 1 if content($other) eq content($path);
    }
    return 0;
}

# The files of the verifier, by size; found when something is in doubt.
sub files_of_verifier {
    my %found = (0 => []);
    my @folders = ("/verifier");
    while (defined(my $folder = shift @folders)) {
        opendir(my $names, $folder) or next;
        for my $place (map { "$folder/$_" } grep { !/^\.\.?$/ } readdir $names) {
            if (-d $place) { push @folders, $place unless -l $place }
            elsif (-f $place && -r $place) { push @{$found{-s $place}}, $place }
        }
    }
    return %found;
}

sub content {
    open(my $file, "<:raw", $_[0]) or return "";
    local $/;
    return scalar <$file>;
}

# The folder of the environment in which a module is found instead of the agent's; none if there is nothing to settle.
sub folder_of {
    my ($name) = @_;
    my $doubt = 0;
    for my $folder (@INC) {
        my @files = ref $folder ? () : grep { -f } "$folder/$name", "$folder/${name}c";
        next unless @files;
        return $doubt ? $folder : undef unless grep { is_doubtful($_) } @files;
        $doubt = 1;
    }
    return undef;
}

# Takes a folder from the front of the list again, also if a module fails.
sub DESTROY {
    my $folder = ${$_[0]};
    for my $place (0 .. $#INC) {
        next if ref $INC[$place] || $INC[$place] ne $folder;
        splice @INC, $place, 1;
        last;
    }
}

sub is_module {
    my ($name) = @_;
    return defined $name && !ref $name && ref \$name ne "VSTRING" && $name =~ m{^[A-Za-z_].*\.p[lm]$} && !$INC{$name};
}

# Whether a script is one that the agent added, and that nobody wrote since.
sub is_agents_program {
    open(my $file, "<", $_[0]) or return 0;
    my $real = readlink "/proc/self/fd/" . fileno $file;
    return defined $real && is_added($real) && !is_new($real) && !is_copy($real);
}

# Perl knows whole seconds; what was written in the second of the start needs a module, which is the environment's.
sub is_new {
    my ($written, $touched) = (stat $_[0])[9, 10];
    return 0 if $written < $laid || $touched < $laid;
    return 1 if $written > $laid && $touched > $laid;
    my @times = eval { settled_require("Time/HiRes.pm"); map { (Time::HiRes::stat($_))[9, 10] } $_[0], "$ground/changes" };
    return !@times || ($times[0] > $times[3] && $times[1] > $times[3]);
}

sub settled_require {
    my ($name) = @_ ? @_ : $_;
    my $folder = is_module($name) ? folder_of($name) : undef;
    my $front;
    if (defined $folder) {
        unshift @INC, $folder;
        $front = bless \$folder;
    }
    return CORE::require($name);
}

if (read_changes()) {
    *{"CORE::GLOBAL::require"} = \&settled_require;
    delete $CORE::GLOBAL::{require} if -f $0 && is_agents_program($0);
}

1;
