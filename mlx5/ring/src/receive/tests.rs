mod explorer;
